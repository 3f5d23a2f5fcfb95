# SPDX-License-Identifier: Apache-2.0
"""Random compiled models have the bits of the same models compiled without Reprise, and keep their
budgets.

REPRISE_COMPILED_PROGRAMS=200 looks longer.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from torch import Tensor, nn

import reprise

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

PROGRAMS = int(os.environ.get("REPRISE_COMPILED_PROGRAMS", "4"))
WIDTH, ROWS, STEPS = 64, 256, 9


def block(kind: str) -> nn.Module:
    if kind == "gelu":
        return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    if kind == "norm":
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU())
    if kind == "batch":
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1))


class Net(nn.Module):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        kinds = rng.choices(("gelu", "norm", "batch", "drop"), k=rng.randint(3, 5))
        self.blocks = nn.ModuleList(block(kind) for kind in kinds)
        self.head = nn.Linear(WIDTH, 1)
        for frozen in list(self.blocks)[: rng.choice((0, 0, 1))]:
            frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.blocks:
            x = x + part(x).sin()
        return self.head(x).square().mean()  # type: ignore[no-any-return]


def trained(seed: int, budget: str | None) -> tuple[list[str], reprise.Report | None]:
    torch._dynamo.reset()
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = Net(rng)
    batches, momentum = rng.choice((1, 1, 2)), rng.random() < 0.5
    model = torch.compile(net, backend="aot_eager", fullgraph=rng.random() < 0.5)
    every = rng.choice((1, 3, 50))
    if budget is not None:
        model = reprise.auto(model, budget=budget, verify_every=every)  # type: ignore[type-var]
    mine = [p for p in net.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(mine, lr=0.05, momentum=0.9)
        if momentum
        else torch.optim.AdamW(mine, lr=0.01)
    )
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(batches):
            loss = model(torch.randn(ROWS, WIDTH))
            loss.backward()
            seen.append(loss.item().hex())
        optimizer.step()
    seen += [t.double().sum().item().hex() for t in net.state_dict().values()]
    report = reprise.report(model) if budget is not None else None  # type: ignore[arg-type]
    if budget is not None:
        reprise.remove(model)  # type: ignore[arg-type]
    return seen, report


def test_random_compiled_models_train_as_they_do_plainly() -> None:
    planned = 0
    for seed in range(PROGRAMS):
        plain, _ = trained(seed, None)
        budget = random.Random(seed).choice(("0.6x", "0.7x", "0.9x"))
        found, report = trained(seed, budget)
        assert report is not None
        assert found == plain, (seed, report.sentence)
        assert report.failed_checks == 0, (seed, report.sentence)
        assert report.over_budget_steps == 0, (seed, report.sentence)
        planned += report.planned_steps
    assert planned >= PROGRAMS
