# SPDX-License-Identifier: Apache-2.0
"""Training loops that are run twice: without Reprise and with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from arming import arm
from local_agent import LocalAgent
from nets import WIDTH
from torch import Tensor, nn

__all__ = ["compared", "curves", "deep", "gradients", "sgd", "train"]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def curves(make: Callable[[bool], list[str]]) -> list[str]:
    """Runs the loop without Reprise and with it; both must return the same losses."""
    torch.manual_seed(5)
    plain = make(False)
    torch.manual_seed(5)
    armed = make(True)
    assert armed == plain
    return armed


def compared(
    make: Callable[[], nn.Module],
    one: Callable[[Any, int], Iterable[Tensor]],
    steps: int = 9,
    agent: LocalAgent | None = None,
    **how: Any,
) -> list[str]:
    """Trains what `make` returns without Reprise and with it, and compares. `one(model, step)` runs
    the forward and the backward of a step, and returns the tensors to compare when it is over."""

    def loop(armed: bool) -> list[str]:
        model = make()
        if armed:
            arm(model, agent, **how)
        optimizer = sgd(model)
        seen = []
        for step in range(steps):
            optimizer.zero_grad()
            found = one(model, step)
            optimizer.step()
            seen += [tensor.detach().sum().item().hex() for tensor in found]
            del found
        return seen

    return curves(loop)


def gradients(model: nn.Module) -> list[Tensor]:
    """Returns the gradients of a model's parameters."""
    return [p.grad for p in model.parameters() if p.grad is not None]


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
