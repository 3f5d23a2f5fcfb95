# SPDX-License-Identifier: Apache-2.0
"""Trains with DeepSpeed's ZeRO under a budget per rank.

    torchrun --nproc-per-node 2 examples/train_deepspeed.py --stage 2 --budget 0.6x
    deepspeed examples/train_deepspeed.py --stage 3 --budget 0.6x      # on GPUs

Reprise gets the model before `deepspeed.initialize`, on every rank. Optimizer state, gradients and
parameters stay divided as ZeRO divides them; a plan decides what becomes of activations.
"""

from __future__ import annotations

import argparse
import sys

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import reprise

# Buffers of the collectives, in elements: the defaults are for models a thousand times as large.
BUCKET = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--budget", help='as "20GiB" or "0.6x"; without it: plain')
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO: 0 to 3")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=1024, help="of a rank")
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # of DeepSpeed's launcher
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    if args.budget:
        reprise.auto(model, budget=args.budget)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        config={
            "train_micro_batch_size_per_gpu": args.batch,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": args.stage,
                "reduce_bucket_size": BUCKET,
                "allgather_bucket_size": BUCKET,
            },
        },
    )
    torch.manual_seed(1 + engine.global_rank)
    for number in range(args.steps):
        rows = torch.randint(len(images), (args.batch,))
        x, labels = images[rows].to(engine.device), torch.tensor(digits.target)[rows]
        loss = F.cross_entropy(engine(x), labels.to(engine.device))
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"step {number + 1}  loss {loss.item():.4f}  {loss.item().hex()}", flush=True)
    if args.budget and engine.global_rank == 0:
        print(reprise.report(model), flush=True)
    sys.stdout.flush()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
