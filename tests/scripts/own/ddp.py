# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel on two ranks of gloo."""

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
layers = [m for _ in range(6) for m in (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))]
model = DistributedDataParallel(nn.Sequential(*layers))
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
del model, optimizer, loss
distributed.destroy_process_group()
time.sleep(0.5)  # a thread of gloo that still lets go of a tensor aborts the interpreter's end
