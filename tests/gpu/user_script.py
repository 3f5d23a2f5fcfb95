# SPDX-License-Identifier: Apache-2.0
"""A training script as people write it: a GPT-2 of transformers from a configuration, a DataLoader
with workers and pinned memory, float16 with a GradScaler. It knows nothing of Reprise. Where
transformers is not installed, the GPT-2 of this folder stands in for it, and the line says so.

    python user_script.py [--small]      # the last line is JSON
"""

from __future__ import annotations

import json
import statistics
import sys

import torch
from gpt2 import Gpt2
from sizes import FULL, REHEARSAL
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

STEPS = 16


def main() -> None:
    size = (REHEARSAL if "--small" in sys.argv else FULL).script
    torch.manual_seed(0)
    try:
        import transformers

        config = transformers.GPT2Config(
            vocab_size=size.vocabulary, n_positions=size.context, n_embd=size.width,
            n_layer=size.layers, n_head=size.heads, use_cache=False,
        )  # fmt: skip
        model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
        name = f"transformers {transformers.__version__}"
    except ImportError:
        model, name = Gpt2(size), "of this folder: transformers is not installed"
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    tokens = torch.randint(0, size.vocabulary, (STEPS * size.batch, size.context + 1))
    loader = DataLoader(TensorDataset(tokens), size.batch, num_workers=2, pin_memory=True)
    losses, pairs, peaks = [], [], []
    for (batch,) in loader:
        torch.cuda.reset_peak_memory_stats()
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        batch = batch.to("cuda", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(batch[:, :-1])
            logits = getattr(out, "logits", out)
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        del out, logits
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        pair[1].record()
        losses.append(loss.item().hex())
        pairs.append(pair)
        peaks.append(torch.cuda.memory_stats().get("requested_bytes.all.peak", 0))
    torch.cuda.synchronize()
    half = STEPS // 2
    print(json.dumps({
        "step_ms": statistics.median(a.elapsed_time(b) for a, b in pairs[half:]),
        "requested": max(peaks[half:]), "first_steps": max(peaks[:half]),
        "reserved": torch.cuda.memory_stats().get("reserved_bytes.all.peak", 0),
        "losses": losses, "model": name,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
