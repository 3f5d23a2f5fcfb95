# SPDX-License-Identifier: Apache-2.0
"""CaiT of vit_pytorch: whole layers are dropped at random, so steps differ in their ops."""

import torch
from torch.nn import functional as F
from vit_pytorch.cait import CaiT

model = CaiT(
    image_size=64,
    patch_size=8,
    num_classes=10,
    dim=96,
    depth=4,
    cls_depth=2,
    heads=4,
    mlp_dim=192,
    dropout=0.1,
    emb_dropout=0.1,
    layer_dropout=0.1,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step}: {loss.item()!r}")
torch.save(model.state_dict(), "cait.pt")
