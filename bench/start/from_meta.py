# SPDX-License-Identifier: Apache-2.0
"""What a step of a transformer of 70 billion parameters needs, without any of its memory.

    python bench/start/from_meta.py [--layers 80]

The model is on the meta device, in bfloat16, with the widths of Llama 3 70B and one sequence of
4,096 tokens. `reprise.estimate` says its peak, and the server plans it. Beside each peak is the sum
by hand of what the backward keeps. All weights are trained with AdamW, then adapters of rank 16 on
queries and values alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
WIDTH, HEADS, GROUPS, INNER, WORDS, LENGTH, RANK = 8192, 64, 8, 28672, 128256, 4096, 16
GIB = 2**30


class Norm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return wide.type_as(x) * self.weight


class Adapted(nn.Module):
    """A linear layer that stays as it is, with an adapter of low rank that is trained."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, outputs, bias=False).requires_grad_(False)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Block(nn.Module):
    """Attention with rotary positions and grouped keys, and a gated layer."""

    def __init__(self, *, adapted: bool) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Module:
            return nn.Linear(inputs, outputs, bias=False).requires_grad_(not adapted)

        few = WIDTH // HEADS * GROUPS
        self.before, self.between = Norm(), Norm()
        self.query = Adapted(WIDTH) if adapted else linear(WIDTH, WIDTH)
        self.key = linear(WIDTH, few)
        self.value = Adapted(few) if adapted else linear(WIDTH, few)
        self.output = linear(WIDTH, WIDTH)
        self.gate, self.up = linear(WIDTH, INNER), linear(WIDTH, INNER)
        self.down = linear(INNER, WIDTH)
        for norm in (self.before, self.between):
            norm.requires_grad_(not adapted)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        def heads(made: Tensor) -> Tensor:
            return made.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

        def turned(made: Tensor) -> Tensor:
            left, right = made.chunk(2, -1)
            parts = (left * cosine - right * sine, right * cosine + left * sine)
            return torch.cat(parts, -1)

        normed = self.before(x)
        many = HEADS // GROUPS
        query = turned(heads(self.query(normed)))
        key = turned(heads(self.key(normed))).repeat_interleave(many, 1)
        value = heads(self.value(normed)).repeat_interleave(many, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        normed = self.between(x)
        out: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return out


class Transformer(nn.Module):
    """Embedding, blocks, and a head of its own."""

    def __init__(self, layers: int, *, adapted: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH).requires_grad_(not adapted)
        self.blocks = nn.ModuleList(Block(adapted=adapted) for _ in range(layers))
        self.norm = Norm().requires_grad_(not adapted)
        self.head = nn.Linear(WIDTH, WORDS, bias=False).requires_grad_(not adapted)
        for name in ("cosine", "sine"):
            self.register_buffer(name, torch.empty(LENGTH, WIDTH // HEADS // 2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        out: Tensor = self.head(self.norm(x))
        return out


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Returns the cross entropy of what the model says of each token, in float32."""
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def by_hand(model: Transformer, *, adapted: bool) -> int:
    """Returns the bytes at the beginning of the backward: what stays from step to step, what each
    block keeps, and the head's."""
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    static = sum(t.nbytes for t in (*model.parameters(), *model.buffers())) + 2 * trained
    row = LENGTH * WIDTH * 2  # of the residual stream
    wide = LENGTH * INNER * 2
    # Both norms: in float32 before and, if its weight is trained, rounded; and the linear layers'
    # input. Queries, keys, values and what comes of them. The gated layer.
    norm = 2 + (0 if adapted else 1 + 1)
    block = 2 * norm * row + 4 * row + (3 if adapted else 4) * wide
    if adapted:
        block += row  # the adapters' input
    logits = LENGTH * WORDS
    # In bfloat16, in float32, their logarithmic softmax, and its gradient.
    head = logits * (2 + 4 + 4 + 4)
    return static + len(model.blocks) * block + head


def main() -> None:
    """Every row of the table."""
    import reprise

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=80)
    args = parser.parse_args()
    print("| trained | budget | seconds | peak | by hand | plan |")
    print("|---|---|---|---|---|---|")
    for adapted, budget in ((False, None), (False, "530GiB"), (True, None), (True, "0.3x")):
        with torch.device("meta"):
            model = Transformer(args.layers, adapted=adapted).to(torch.bfloat16)
            tokens = torch.empty(1, LENGTH, dtype=torch.long)
        begin = time.perf_counter()
        made: Any = reprise.estimate(
            model,
            loss,
            tokens,
            optimizer=lambda p: torch.optim.AdamW([x for x in p if x.requires_grad], fused=True),
            budget=budget,
        )
        took = time.perf_counter() - begin
        hand = by_hand(model, adapted=adapted)
        print(
            f"| {'adapters' if adapted else 'all weights'} | {budget or ''} | {took:.1f} | "
            f"{made.peak_bytes / GIB:.1f} GiB | {hand / GIB:.1f} GiB "
            f"({made.peak_bytes / hand - 1:+.1%}) | {made.why} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
