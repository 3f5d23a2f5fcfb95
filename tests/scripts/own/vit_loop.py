# SPDX-License-Identifier: Apache-2.0
"""A vision transformer of vit_pytorch on random pictures."""

import torch
from torch.nn import functional as F
from vit_pytorch import ViT

vit = ViT(
    image_size=64,
    patch_size=8,
    num_classes=10,
    dim=96,
    depth=4,
    heads=4,
    mlp_dim=192,
    dropout=0.1,
    emb_dropout=0.1,
)
optimizer = torch.optim.Adam(vit.parameters(), lr=1e-3)
for step in range(14):
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
    loss = F.cross_entropy(vit(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step}: {loss.item()!r}")
