# SPDX-License-Identifier: Apache-2.0
"""The jobs that are measured: GPT-2 with torch's fused attention, plain or checkpointed by hand in
the ways that people do it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sizes import Gpt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer norm, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, size: Gpt) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.token.weight
        self.through: Callable[[Tensor], Tensor] = self._plain

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.through(x)))

    def _plain(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def by_hand(self, way: str) -> None:
        """Checkpoints its blocks: "block" every one, "sqrt" segments of about a square root, and
        "selective" every one but for what matrix products and attention give."""
        if way == "sqrt":
            segments = max(1, round(math.sqrt(len(self.blocks))))
            self.through = lambda x: checkpoint_sequential(
                list(self.blocks), segments, x, use_reentrant=False
            )
            return
        options: dict[str, Any] = {"use_reentrant": False}
        if way == "selective":
            options["context_fn"] = lambda: create_selective_checkpoint_contexts(_policy)

        def through(x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, **options)
            return x

        self.through = through


_SAVED = ("mm", "addmm", "bmm", "_scaled_dot_product")


def _policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """What torchtitan and others keep: the outputs of what costs most."""
    name = str(func).removeprefix("aten.").split(".")[0]
    keep = name in _SAVED or name.startswith("_scaled_dot_product")
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


class GptJob:
    """A GPT-2 with AdamW on random tokens; bfloat16 where autocast says so."""

    def __init__(self, size: Gpt, way: str = "", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Gpt2(size).cuda()
        if way:
            self.model.by_hand(way)
        self.call: Callable[[Tensor], Tensor] = self.model  # or it compiled
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        source = torch.Generator("cuda").manual_seed(1)
        shape = (4, size.batch, size.context + 1)
        self.tokens = torch.randint(0, size.vocabulary, shape, device="cuda", generator=source)

    def step(self, number: int) -> Tensor:
        tokens = self.tokens[number % len(self.tokens)]
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = self.call(tokens[:, :-1])
            loss = F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
        del out
        loss.backward()
        self.optimizer.step()
        return loss.detach()
