# SPDX-License-Identifier: Apache-2.0
"""Training loops that are run twice: without Reprise and with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from nets import WIDTH
from torch import Tensor, nn

__all__ = ["curves", "deep", "sgd", "train"]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def curves(make: Callable[[bool], list[str]]) -> list[str]:
    """The loop without Reprise and with it; they must print the same losses."""
    torch.manual_seed(5)
    plain = make(False)
    torch.manual_seed(5)
    armed = make(True)
    assert armed == plain
    return armed


def deep(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, width), nn.GELU()
    )


def train(
    model: nn.Module, steps: int, batches: Callable[[int], Tensor] | None = None
) -> list[str]:
    optimizer = sgd(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        out = model(batches(step) if batches else torch.randn(6, WIDTH))
        outs = out if isinstance(out, tuple) else (out,)
        loss: Any = sum((o * o).mean() for o in outs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses
