# SPDX-License-Identifier: Apache-2.0
"""A masked autoencoder of vit_pytorch around its vision transformer."""

import torch
from vit_pytorch import MAE, ViT

vit = ViT(image_size=64, patch_size=8, num_classes=10, dim=96, depth=3, heads=4, mlp_dim=192)
model = MAE(encoder=vit, masking_ratio=0.75, decoder_dim=64, decoder_depth=3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(14):
    loss = model(torch.randn(32, 3, 64, 64))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"{step}: {loss.item()!r}")
torch.save(vit.state_dict(), "vit.pt")
