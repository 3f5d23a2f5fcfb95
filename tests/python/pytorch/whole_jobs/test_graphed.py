# SPDX-License-Identifier: Apache-2.0
"""A forward and its backward that the program captures into a CUDA graph run under a plan of their
own. Here on the CPU, where the only thing that is not real is that a graph is captured: what a real
capture forbids and what replays compute is tested on the fake GPU (tests/fakegpu)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import reprise
from reprise.torch.internals.ops import OpKind
from reprise.torch.planning import beside
from reprise.torch.session import graphed, session
from reprise.torch.training import armed

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

WIDTH, ROWS, EAGER, STEPS = 96, 512, 8, 12


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets whether a graph is captured."""
    now = [False]
    for module in (session, graphed):
        monkeypatch.setattr(module, "captures_graph", lambda _: now[0])
    monkeypatch.setattr(beside, "blas_workspace_bytes", lambda _: 0)

    def set_to(is_captured: bool) -> None:
        now[0] = is_captured

    return set_to


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    return nn.Sequential(*layers)


def train(model: nn.Module, capturing: Callable[[bool], None], eager: int = EAGER) -> list[Tensor]:
    """After so many steps each forward and backward is captured; its optimizer steps outside."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(ROWS, WIDTH)
        capturing(step >= eager)
        model(x).square().mean().backward()
        capturing(False)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("budget", ["0.7x", "4.5MiB"])
def test_a_captured_pass_keeps_the_budget_and_the_bits(
    budget: str, capturing: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = train(network(), capturing)
    model = reprise.auto(network(), budget=budget)

    found = train(model, capturing)

    report, said = reprise.report(model), capsys.readouterr().err
    reprise.remove(model)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert report.over_budget_steps == 0, report.sentence
    assert report.planned_steps == STEPS
    assert 0 < report.measured_peak_bytes <= report.budget_bytes
    assert "captured into a CUDA graph under the plan" in said


def test_what_is_captured_draws_no_random_number_again(capturing: Callable[[bool], None]) -> None:
    model = reprise.auto(network(), budget="0.5x")

    train(model, capturing)

    loop = armed.current(model)
    assert isinstance(loop, session.Session)
    rung = loop.job.plans.rung
    reprise.remove(model)
    assert rung is not None
    assert rung.plan is not None
    ops = enumerate(rung.graph.step.ops)
    drawn = {number for number, op in ops if op.kind == OpKind.SEEDED}
    runs = Counter(entry for entry in rung.plan.schedule if entry >= 0)
    again = {op for op, count in runs.items() if count > 1}
    assert drawn
    assert again
    assert not drawn & again


def test_what_is_captured_before_there_is_a_plan_runs_as_it_is(
    capturing: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = train(network(), capturing, eager=0)
    model = reprise.auto(network(), budget="0.5x")

    found = train(model, capturing, eager=0)

    said = capsys.readouterr().err
    reprise.remove(model)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert said.count("a CUDA graph is captured of the model, and there is no plan yet") == 1
