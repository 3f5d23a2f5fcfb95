# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers with evaluation and checkpoints. --compile: torch_compile=True."""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(vocab_size=256, n_positions=64, n_embd=96, n_layer=4, n_head=4)
model = GPT2LMHeadModel(config)
rows = [torch.randint(0, 256, (64,)) for _ in range(128)]
dataset = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments(
    output_dir="out",
    max_steps=16,
    per_device_train_batch_size=8,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=8,
    save_steps=8,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=3,
    torch_compile="--compile" in sys.argv,
)
trainer = Trainer(model=model, args=arguments, train_dataset=dataset, eval_dataset=dataset[:16])
trainer.train()
for entry in trainer.state.log_history:
    for name in ("loss", "eval_loss", "grad_norm"):
        if name in entry:
            print(name, repr(float(entry[name])))
