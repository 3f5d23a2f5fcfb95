# SPDX-License-Identifier: Apache-2.0
"""fully_shard on two ranks of gloo."""

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo")
layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
model = nn.Sequential(*layers)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(distributed.get_rank())
for step in range(14):
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if distributed.get_rank() == 0:
        print(step, repr(loss.item()), flush=True)
distributed.barrier()
distributed.destroy_process_group()
