# SPDX-License-Identifier: Apache-2.0
"""A budget that no plan fits, or none that is cheap enough: the program says what happens then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import reprise
from reprise import InfeasibleBudget

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

STEPS = 9


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))


def train(model: nn.Module, steps: int = STEPS) -> list[Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(512, 64)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "asked", [{"budget": "0.001x"}, {"budget": "0.6x", "max_overhead": 0.0}], ids=["bytes", "time"]
)
def test_by_default_the_job_trains_on_without_a_plan(
    asked: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    expected = train(network())
    model = reprise.auto(network(), **asked)  # type: ignore[arg-type]

    assert same(train(model), expected)

    report = reprise.report(model)
    assert report.plan is None
    assert "training without a plan" in str(report.stage)  # type: ignore[attr-defined]
    said = capfd.readouterr().err
    assert ("max_overhead allows" in said) == ("max_overhead" in asked), said
    reprise.remove(model)


def test_the_nearest_plan_is_the_one_that_needs_least() -> None:
    expected = train(network())
    model = reprise.auto(network(), budget="0.001x", on_infeasible="nearest")

    assert same(train(model), expected)

    report = reprise.report(model)
    assert report.plan is not None
    assert 0 < report.measured_bytes <= report.plan.budget_bytes
    assert report.bits is True
    reprise.remove(model)


@pytest.mark.parametrize(
    "asked", [{"budget": "0.001x"}, {"budget": "0.6x", "max_overhead": 0.0}], ids=["bytes", "time"]
)
def test_a_program_that_wants_the_error_gets_it_and_may_go_on(asked: dict[str, object]) -> None:
    expected = train(network())
    model = reprise.auto(network(), on_infeasible="raise", **asked)  # type: ignore[arg-type]
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    raised = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(512, 64)
        try:
            out = model(x)
        except InfeasibleBudget as error:
            raised.append(error)
            out = model(x)
        out.square().mean().backward()
        optimizer.step()

    assert len(raised) == 1
    assert ("max_overhead allows" in str(raised[0])) == ("max_overhead" in asked)
    assert same([p.detach() for p in model.parameters()], expected)
    reprise.remove(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [("on_infeasible", "stop"), ("max_overhead", -1), ("max_overhead", "30 %"), ("budget", "8G")],
)
def test_what_cannot_be_asked_is_refused_at_once(name: str, value: object) -> None:
    with pytest.raises(reprise.RepriseError, match=name):
        reprise.auto(network(), **{"budget": "0.5x", name: value})  # type: ignore[arg-type]
