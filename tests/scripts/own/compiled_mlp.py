# SPDX-License-Identifier: Apache-2.0
"""torch.compile with its default backend."""

import torch
from torch import nn

layers = [m for _ in range(6) for m in (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))]
model = torch.compile(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, repr(loss.item()))
