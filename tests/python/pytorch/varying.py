# SPDX-License-Identifier: Apache-2.0
"""Jobs in which the data decides sizes within the step, and how their planned steps keep a budget.

    found = run("routed", "0.8x", steps=60)   # each step beside that of the job without Reprise

Every step draws its batch from a generator of its own, as in the zoo (zoo.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import ZooJob

import reprise
from reprise.torch.session.session import Session
from reprise.torch.session.step_end import StepEnd
from reprise.torch.training.armed import current

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # type: ignore[no-any-return]


class Routed(nn.Module):
    """A mixture of experts: each token goes to the two that its gate rates highest."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)
        self.experts = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).reshape(-1, WIDTH)
        weight, chosen = self.gate(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)
            out.index_add_(0, row, expert(flat[row]) * weight[row, slot, None])
        return x + out.view_as(x)


class Masked(nn.Module):
    """Every block works on the tokens that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        for block in self.blocks:
            there = x[keep]
            x = x.masked_scatter(keep[..., None].expand_as(x), there + block(there))
        return x


class Detector(nn.Module):
    """A head looks at as many places as are rated high."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 32, 32, 32, 32]
        layers = [
            layer
            for narrow, wide in pairwise(sizes)
            for layer in (nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU())
        ]
        self.backbone, self.rate = nn.Sequential(*layers), nn.Conv2d(32, 1, 1)
        self.head = nn.Sequential(
            nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.backbone(x)
        rated = self.rate(seen).flatten(1)
        image, place = (rated > rated.mean() + 0.2 * rated.std()).nonzero(as_tuple=True)
        return self.head(seen.flatten(2).transpose(1, 2)[image, place]), rated


class Exits(nn.Module):
    """Eight blocks, of which a step leaves out the last ones when it is sure enough."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.sure = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = x + block(x)
            if number >= 2 and self.sure(x).mean().item() > 0.1 - 0.02 * number:
                break
        return x


def _job(model: nn.Module, loss: Callable[[torch.Generator], Tensor], seed: int) -> ZooJob:
    def forward_loss(number: int) -> Tensor:
        return loss(torch.Generator().manual_seed(1000 * seed + number))

    return ZooJob(model, torch.optim.AdamW(model.parameters(), lr=1e-3), forward_loss)


def _routed(seed: int) -> ZooJob:
    model = nn.Sequential(*(Routed() for _ in range(4)))

    def loss(draw: torch.Generator) -> Tensor:
        x = torch.randn(8, 64, WIDTH, generator=draw) + torch.randn(WIDTH, generator=draw) / 2
        return (model(x) - x.roll(1, 1)).square().mean()  # type: ignore[no-any-return]

    return _job(model, loss, seed)


def _masked(seed: int) -> ZooJob:
    model = Masked()

    def loss(draw: torch.Generator) -> Tensor:
        lengths = torch.randint(8, 65, (16, 1), generator=draw)
        keep = torch.arange(64)[None] < lengths
        return model(torch.randn(16, 64, WIDTH, generator=draw), keep).square().mean()  # type: ignore[no-any-return]

    return _job(model, loss, seed)


def _detector(seed: int) -> ZooJob:
    model = Detector()

    def loss(draw: torch.Generator) -> Tensor:
        contrast = 0.5 + torch.rand(4, 1, 1, 1, generator=draw)
        boxes, rated = model(torch.randn(4, 3, 32, 32, generator=draw) * contrast)
        return boxes.square().mean() + rated.square().mean()  # type: ignore[no-any-return]

    return _job(model, loss, seed)


def _ragged(seed: int) -> ZooJob:
    model = nn.Sequential(*(Block() for _ in range(6)))

    def loss(draw: torch.Generator) -> Tensor:
        rows = int(torch.randint(128, 1025, (), generator=draw))
        return model(torch.randn(rows, WIDTH, generator=draw)).square().mean()  # type: ignore[no-any-return]

    return _job(model, loss, seed)


def _packed(seed: int) -> ZooJob:
    """One to three micro-batches, each of another size."""
    model = nn.Sequential(*(Block() for _ in range(6)))

    def loss(draw: torch.Generator) -> Tensor:
        last = torch.zeros(())
        for number in range(count := int(torch.randint(1, 4, (), generator=draw))):
            rows = int(torch.randint(128, 1025, (), generator=draw))
            last = model(torch.randn(rows, WIDTH, generator=draw)).square().mean()
            if number < count - 1:
                last.backward()  # type: ignore[no-untyped-call]
        return last

    return _job(model, loss, seed)


def _exits(seed: int) -> ZooJob:
    model = Exits()

    def loss(draw: torch.Generator) -> Tensor:
        x = torch.randn(256, WIDTH, generator=draw) + torch.randn(WIDTH, generator=draw)
        return model(x).square().mean()  # type: ignore[no-any-return]

    return _job(model, loss, seed)


VARYING = {
    "routed": _routed,
    "masked": _masked,
    "detector": _detector,
    "ragged": _ragged,
    "packed": _packed,
    "exits": _exits,
}


@dataclass
class Kept:
    """How a job kept its budget."""

    steps: int = 0
    planned: int = 0
    above: int = 0  # planned steps that peaked above their budget
    most_above: float = 0.0  # of the budget
    captures: int = 0
    equal: bool = True  # every loss, and the weights at the end
    why: str = ""


def run(name: str, budget: str, steps: int, seed: int = 0) -> Kept:
    """Trains a job without Reprise, and then once more under a budget."""
    expected = _plain(name, steps, seed)
    torch.manual_seed(seed)
    job = VARYING[name](seed)
    kept = Kept()
    count = StepEnd._count

    def noted(self: StepEnd, step: Any) -> None:
        within = step.rung.plan.budget_bytes
        above = max(0, step.peak - within) if step.plan is not None else 0
        kept.above += above > 0
        kept.most_above = max(kept.most_above, above / within)
        kept.planned += 1
        count(self, step)

    StepEnd._count = noted  # type: ignore[method-assign]
    try:
        reprise.auto(job.model, budget=budget, name=name)
        for number in range(steps):
            kept.equal &= torch.equal(expected[number], job.step(number))
            kept.steps += 1
        session = current(job.model)
        assert isinstance(session, Session)
        kept.captures = session.job.plans.ladder.captures
        kept.why = reprise.report(job.model).why
    finally:
        reprise.remove(job.model)
        StepEnd._count = count  # type: ignore[method-assign]
    kept.equal &= all(map(torch.equal, expected[steps:], job.model.parameters()))
    return kept


def _plain(name: str, steps: int, seed: int) -> list[Tensor]:
    """Returns the losses of the job without Reprise, and its weights at the end."""
    torch.manual_seed(seed)
    job = VARYING[name](seed)
    losses = [job.step(number) for number in range(steps)]
    return [*losses, *(weight.detach() for weight in job.model.parameters())]
