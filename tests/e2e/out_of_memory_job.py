# SPDX-License-Identifier: Apache-2.0
"""Trains a network, and then a batch for which its memory is too small: ends by that error."""

from __future__ import annotations

import resource

import torch
from torch import nn

import reprise

layers: list[nn.Module] = []
for _ in range(12):
    layers += [nn.Linear(256, 256), nn.ReLU()]
model = reprise.auto(nn.Sequential(*layers, nn.Linear(256, 1)), name="digits, batch too large")
optimizer = torch.optim.Adam(model.parameters())


def step(batch: int) -> None:
    optimizer.zero_grad()
    model(torch.randn(batch, 256)).square().mean().backward()
    optimizer.step()


for _ in range(6):
    step(4096)
# What it has, and room for a part of what the next step needs.
with open("/proc/self/statm") as file:
    held = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (48 << 20), resource.RLIM_INFINITY))
step(32768)
