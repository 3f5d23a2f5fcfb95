# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT, byte by byte, on the help texts that ship with Python.

    python examples/train_gpt.py                   # plain PyTorch
    python examples/train_gpt.py --budget 0.5x     # half of its own dynamic memory

The network is that of GPT-2 in small: pre-norm blocks, learned positions,
dropout after the embedding, on the attention weights and after both halves of
a block, and one matrix for the token embedding and the output. The text is
`pydoc_data.topics`, the language reference behind Python's `help()`: some
700 kB of English with code.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import reprise

BYTES = 256


class Attention(nn.Module):
    """Causal self-attention, written out."""

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop_weights = nn.Dropout(dropout)
        self.drop_out = nn.Dropout(dropout)
        future = torch.ones(context, context, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        y = self.drop_weights(scores.softmax(dim=-1)) @ v
        return self.drop_out(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, context, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, context, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.apply(self._init)
        # Tied: the output reads the matrix that the input writes.
        self.head.weight = self.token.weight

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of the text and, one byte further, what comes next."""

    def __init__(self, context: int) -> None:
        text = "\n\n".join(topics[name] for name in sorted(topics))
        self.data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        self.context = context

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.data[index * self.context : (index + 1) * self.context + 1]
        return piece[:-1], piece[1:]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, choices=range(5))
    parser.add_argument("--budget", help='of memory, as "0.5x" or "2GiB"; without: plain PyTorch')
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width}: must be a multiple of --heads {args.heads}")
    return args


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)

    model = GPT(args.depth, args.width, args.heads, args.context, args.dropout)
    if args.budget:
        model = reprise.auto(model, budget=args.budget, verify="gradients")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    loader = DataLoader(
        Text(args.context), args.batch, shuffle=True, drop_last=True, num_workers=args.workers
    )

    model.train()
    step = 0
    while step < args.steps:
        for tokens, following in loader:
            started = time.perf_counter()
            optimizer.zero_grad()
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()

            step += 1
            seconds = time.perf_counter() - started
            if args.json:
                # The loss to its last bit, so that two runs can be compared.
                line = {"step": step, "loss": loss.item().hex(), "seconds": round(seconds, 6)}
                print(json.dumps(line), flush=True)
            else:
                print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
