# SPDX-License-Identifier: Apache-2.0
"""Small training jobs of models that torch.compile has compiled, for faults.py. The backend is
`aot_eager`: the graphs and their plans without a compiler's minutes.

Importing this adds them to `fault_jobs.KINDS`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import torch
from fault_jobs import Job, finished, kind, train
from nets import WIDTH
from torch import Tensor, nn

import reprise

__all__: list[str] = []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.dropout(self.up(self.norm(x)).sin().exp(), 0.2))


class Net(nn.Module):
    """Blocks, with `between` called from one block to the next."""

    def __init__(self, between: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        random.seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        if self.between is not None:
            x = self.between(x)
        return self.blocks[1](x)  # type: ignore[no-any-return]


def planned(called: Any, armed: bool, budget: str = "0.9x", **how: Any) -> Job:
    """Arms a model with a daemon of its own and trains it; the program calls `called`."""

    def job() -> str:
        if armed:
            reprise.auto(called, budget=budget, verify_every=3, **how)
        found = train(called, 6, rows=lambda step: 64)
        finished(called)
        reprise.remove(called)
        return found

    return job


@kind
def compiled_whole(armed: bool) -> Job:
    """A model that torch.compile has wrapped."""
    return planned(torch.compile(Net(), backend="aot_eager"), armed)


@kind
def compiled_in_place(armed: bool) -> Job:
    """A model that is compiled in place, its budget in bytes."""
    model = Net()
    model.compile(backend="aot_eager")
    return planned(model, armed, "90KiB", verify="gradients")


@kind
def compiled_with_breaks(armed: bool) -> Job:
    """A graph break in its forward: two graphs under one plan."""
    model = Net(torch.compiler.disable(lambda x: x * 1.0))
    return planned(torch.compile(model, backend="aot_eager"), armed)


@kind
def compiled_parts(armed: bool) -> Job:
    """Blocks that are compiled one by one: they are not planned, and the log says so."""
    model = Net()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return planned(model, armed)


@kind
def compiled_late(armed: bool) -> Job:
    """Armed first and compiled afterwards: the compiled code is planned."""
    model = Net()

    def job() -> str:
        local_or_not = reprise.auto(model, budget="0.9x", verify_every=3) if armed else model
        called = torch.compile(local_or_not, backend="aot_eager")
        found = train(called, 9, rows=lambda step: 64)
        finished(model)
        reprise.remove(model)
        return found

    return job


@kind
def compiled_unaware(armed: bool) -> Job:
    """A compiled model in a program that does not know of Reprise, under `reprise run`."""
    from reprise.torch.internals.entry import otherwise
    from reprise.torch.session import attach

    model = torch.compile(Net(), backend="aot_eager")

    def job() -> str:
        os.environ["REPRISE_BUDGET"] = "0.9x"
        if armed:
            otherwise(lambda: None)(attach.attach)()  # as the package's sitecustomize does
        return train(model, 5, rows=lambda step: 64)

    return job
