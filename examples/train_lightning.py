# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning under a budget: one callback.

    python examples/train_lightning.py --budget 0.6x

A LightningModule's own forward is rarely called: its training_step calls a part, here `net`. Told
so, Reprise plans that part from its first step on.
"""

from __future__ import annotations

import argparse

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import reprise
from reprise.lightning import Budget


class Digits(L.LightningModule):
    """A small network for handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        self.net = nn.Sequential(*layers, nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Returns and prints the loss."""
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        print(f"step {index + 1}  loss {loss.item():.4f}  {loss.item().hex()}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--budget", help='as "20GiB" or "0.6x"; without it: plain')
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    L.seed_everything(0, verbose=False)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Budget(args.budget, part="net")] if args.budget else [],
    )
    module = Digits()
    trainer.fit(module, DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True))
    if args.budget and trainer.is_global_zero:
        print(reprise.report(module.net))


if __name__ == "__main__":
    main()
