# SPDX-License-Identifier: Apache-2.0
"""Trains with Accelerate, on one process or several, under a budget per rank.

    python examples/train_accelerate.py --budget 0.6x
    torchrun --nproc-per-node 2 examples/train_accelerate.py --budget 0.6x

`prepare` wraps the model where there are several ranks; what is inside the wrapper computes, so
that is what Reprise gets, on every rank. Accumulation, clipping and gathering stay as they are.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import reprise


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--budget", help='as "20GiB" or "0.6x"; without it: plain')
    parser.add_argument("--steps", type=int, default=24, help="of the optimizer")
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    inner = accelerator.unwrap_model(model)
    if args.budget:
        reprise.auto(inner, budget=args.budget)

    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for number, (x, labels) in zip(range(2 * args.steps), batches, strict=False):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if number % 2:
            mean = accelerator.gather(loss.detach()).mean().item()
            accelerator.print(f"step {number // 2 + 1}  loss {mean:.4f}  {mean.hex()}")
    if args.budget:
        accelerator.print(reprise.report(inner))
    accelerator.end_training()


if __name__ == "__main__":
    main()
