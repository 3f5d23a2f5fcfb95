# SPDX-License-Identifier: Apache-2.0
"""Calls a model and trains none."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
with torch.no_grad():
    print(repr(model(torch.randn(4, 8)).sum().item()))
raise SystemExit(7)
