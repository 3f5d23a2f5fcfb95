# SPDX-License-Identifier: Apache-2.0
"""A causal language model of transformers in a loop of one's own: accumulated steps, a schedule,
evaluation after each epoch, a checkpoint at the end. --compile BACKEND: torch.compile first."""

import math
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler

config = GPT2Config(vocab_size=256, n_positions=64, n_embd=96, n_layer=4, n_head=4)
net = GPT2LMHeadModel(config)
model = torch.compile(net, backend=sys.argv[2]) if len(sys.argv) > 2 else net
rows = torch.randint(0, 256, (136, 64))
train, held_back = DataLoader(rows[:128], batch_size=8, shuffle=True), DataLoader(rows[128:], 8)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=16)
for epoch in range(2):
    model.train()
    for number, batch in enumerate(train):
        loss = model(input_ids=batch, labels=batch).loss
        (loss / 2).backward()
        print(epoch, number, repr(loss.item()))
        if number % 2:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = [model(input_ids=batch, labels=batch).loss.item() for batch in held_back]
    print("perplexity", repr(math.exp(sum(losses) / len(losses))))
net.save_pretrained("out")
