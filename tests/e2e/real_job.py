# SPDX-License-Identifier: Apache-2.0
"""Trains a small network, and knows nothing of Reprise; ends when its input does, and says so.

A program that starts it holds the other end of its input: no job is left when that program dies.
"""

from __future__ import annotations

import select
import sys
import time

import torch
from torch import nn

WIDTH, BATCH = 128, 1024
LONGEST_S = 300


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


torch.manual_seed(1)
model = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(WIDTH, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
steps, end = 0, time.monotonic() + LONGEST_S
while time.monotonic() < end and not select.select([sys.stdin], [], [], 0)[0]:
    optimizer.zero_grad()
    loss = model(torch.randn(BATCH, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    steps += 1
print(f"stopped after {steps} steps, the loss is a number: {bool(torch.isfinite(loss))}")
