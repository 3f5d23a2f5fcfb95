# SPDX-License-Identifier: Apache-2.0
"""The network that every job trains: a small language model, whole or cut into stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "BATCH",
    "LENGTH",
    "VOCABULARY",
    "WIDTH",
    "Block",
    "Decoder",
    "batch_of",
    "loss_of",
]

WIDTH, HEAD, LENGTH, BATCH, VOCABULARY = 64, 16, 128, 8, 256


class Block(nn.Module):
    """Attention and a multilayer perceptron. The number of heads is taken from what the projections
    return, so that each rank may hold some of them."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`: batch, length, width."""
        y = self.norm1(x)
        q, k, v = (
            linear(y).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """Tokens to logits; a stage of a pipeline lacks the embedding, the head or both."""

    def __init__(
        self,
        blocks: int = 4,
        drop: float = 0.1,
        *,
        first: bool = True,
        last: bool = True,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.ModuleList(Block(drop) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, or what the next stage takes."""
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def batch_of(generator: torch.Generator, rows: int = BATCH) -> Tensor:
    """Returns random tokens: their first `LENGTH` are the input, their last the targets."""
    return torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=generator)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
