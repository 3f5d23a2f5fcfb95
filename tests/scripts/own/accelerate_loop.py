# SPDX-License-Identifier: Apache-2.0
"""Accelerate: a prepared model, accumulated gradients, clipping, gathered metrics."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
model = nn.Sequential(*layers, nn.Linear(64, 10))
data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=128, shuffle=True)
)
for number, (images, labels) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(number, repr(accelerator.gather(loss).mean().item()))
accelerator.save_state("out")
