# SPDX-License-Identifier: Apache-2.0
"""A model that runs out of memory on demand, and a loop that goes on after the error.

Failing.backwards = 1; found = run(made()); same(found, run(made()))
"""

from __future__ import annotations

from typing import Any

import torch
from habits import W, deep, differing, evidence
from torch import Tensor, nn


class Failing(torch.autograd.Function):
    """Returns a copy of its input, but its next `forwards` forwards and `backwards` backwards run
    out of memory."""

    forwards = 0
    backwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if Failing.forwards:
            Failing.forwards -= 1
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        if Failing.backwards:
            Failing.backwards -= 1
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
        return grad


class Model(nn.Module):
    """Runs out of memory between its two halves; counts its calls if `counts` is set."""

    def __init__(self, width: int = W) -> None:
        super().__init__()
        self.first, self.norm, self.last = deep(width), nn.BatchNorm1d(width), deep(width)
        self.calls = 0
        self.counts = False

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += self.counts
        hidden = Failing.apply(self.norm(self.first(x)))  # type: ignore[no-untyped-call]
        out = self.last(hidden)
        return out.square().mean(), {"out": out, "hidden": hidden.detach()}


def run(model: nn.Module, steps: int = 8, change: Any = None) -> list[dict[str, str]]:
    """Runs a loop that goes on after an error; returns the evidence of the steps that succeeded."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    while len(found) < steps:
        torch.manual_seed(len(found))
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
        try:
            optimizer.zero_grad()
            x = torch.randn(16, W)
            if change is not None:
                change(x)
            loss, more = model(x)
            noise = torch.rand(())  # drawn between forward and backward
            (loss + noise * more["out"].sin().mean()).backward()
            optimizer.step()
        except torch.OutOfMemoryError:
            continue
        found.append(evidence(([loss.detach()], [model])))
    return found


def made() -> Model:
    torch.manual_seed(0)
    return Model()


def same(found: list[dict[str, str]], expected: list[dict[str, str]]) -> bool:
    return all(differing(a, b) == [] for a, b in zip(found, expected, strict=True))
