# SPDX-License-Identifier: Apache-2.0
"""Trains, and fails in the tenth step."""

import torch
from torch import nn

layers = [m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    loss = model(torch.randn(512, 64)).square().mean()
    loss.backward()
    if step == 9:
        raise ValueError(f"a bad batch in step {step}")
    optimizer.step()
    optimizer.zero_grad()
    print(step, repr(loss.item()))
