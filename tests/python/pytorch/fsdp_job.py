# SPDX-License-Identifier: Apache-2.0
"""One rank of a model that fully_shard divides, in one of the ways that programs do:
python fsdp_job.py RANK PORT BUDGET KIND. Prints one JSON object."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import torch
from on_ranks import tell
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn import functional as F

import reprise

WIDTH, WORDS, STEPS = 64, 256, 8
KINDS = (
    "blocks", "head in chunks", "offloaded", "whole", "kept", "again", "bf16", "groups", "ignored",
    "second dimension", "frozen", "tied", "prefetched", "gradients stay", "micro-batches",
    "unsynced", "clipped", "replicated",
)  # fmt: skip


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return x + out * self.scale.to(out.dtype)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.without_head = False

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out if self.without_head else self.head(out)


def sharded(kind: str) -> Net:
    """Returns the model as this kind of program divides it."""
    model = Net()
    options: dict[str, Any] = {"mesh": init_device_mesh("cpu", (2,))}
    if kind == "kept":
        options["reshard_after_forward"] = False
    elif kind == "again":
        options["reshard_after_forward"] = True
    elif kind == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    elif kind == "second dimension":
        options["shard_placement_fn"] = lambda p: Shard(1) if p.dim() == 2 else None
    elif kind == "ignored":
        options["ignored_params"] = set(model.norm.parameters())
    elif kind == "frozen":
        for block in model.blocks[:2]:
            block.requires_grad_(False)
    elif kind == "tied":
        model.head.weight = model.words.weight
    elif kind == "replicated":
        options["mesh"] = init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "shards"))
    elif kind == "offloaded":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for block in () if kind == "whole" else model.blocks:
        fully_shard(block, **options)
    if kind in ("groups", "head in chunks"):
        fully_shard([model.norm, model.head], **options)
    fully_shard(model, **options)
    if kind == "prefetched":
        for first, then in zip(model.blocks, model.blocks[1:], strict=False):
            first.set_modules_to_forward_prefetch([then])
            then.set_modules_to_backward_prefetch([first])
    model.without_head = kind == "head in chunks"
    return model


def backward(model: Net, words: Tensor, kind: str, share: float) -> float:
    """Goes forward and back with one batch; returns its loss."""
    out, wanted = model(words), words.roll(-1, 1)
    if not model.without_head:
        loss = F.cross_entropy(out.flatten(0, 1).float(), wanted.flatten()) * share
        loss.backward()
        return loss.item()
    part, total = out.detach().requires_grad_(), 0.0
    for x, y in zip(part.chunk(4, 1), wanted.chunk(4, 1), strict=True):
        loss = F.cross_entropy(model.head(x).flatten(0, 1), y.flatten()) * share / 4
        loss.backward()
        total += loss.item()
    assert part.grad is not None
    out.backward(part.grad)
    return total


def main() -> None:
    rank, port, budget, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = sharded(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if budget != "none":
        reprise.auto(model, budget=budget)
    torch.manual_seed(rank)  # of batches and dropout
    batches = 3 if kind in ("micro-batches", "unsynced") else 1
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=kind != "gradients stay")
        for batch in range(batches):
            if kind == "unsynced":
                model.set_requires_gradient_sync(batch == batches - 1)
            words = torch.randint(WORDS, (8, 128))
            seen.append(backward(model, words, kind, 1 / batches).hex())
        if kind == "clipped":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    own = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    state = b"".join(p.detach().contiguous().numpy().tobytes() for p in own)
    tell(model, [*seen, hashlib.sha256(state).hexdigest()], planned=budget != "none")


if __name__ == "__main__":
    main()
