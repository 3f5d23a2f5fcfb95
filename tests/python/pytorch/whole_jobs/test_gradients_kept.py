# SPDX-License-Identifier: Apache-2.0
"""Programs that drop their gradients in some steps and keep them in others, where a captured step
has seen one of both: a budget in bytes holds in each step, or the log says why not."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import reprise

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

WIDTH, ROWS = 96, 512
SWITCH, STEPS = 6, 14


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)))


def train(model: nn.Module, keeps: list[bool]) -> list[Tensor]:
    """`keeps`: for each step, whether the gradients of the one before are there, all zeros."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for kept in keeps:
        optimizer.zero_grad(set_to_none=not kept)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    "keeps",
    [
        [step >= SWITCH for step in range(STEPS)],
        [step < SWITCH for step in range(STEPS)],
        [step > SWITCH and step % 3 == 0 for step in range(STEPS)],
    ],
    ids=["later", "first", "now and then"],
)
def test_no_step_is_above_its_budget(keeps: list[bool]) -> None:
    expected = train(network(), keeps)
    model = reprise.auto(network(), budget="3MiB")

    found = train(model, keeps)

    report = reprise.report(model)
    reprise.remove(model)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert report.planned_steps == STEPS
    assert report.over_budget_steps == 0, report.sentence
    assert report.failed_checks == 0


def test_steps_that_nothing_fits_take_the_least_that_is_known_and_are_counted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = reprise.auto(network(), budget="0.001x", on_infeasible="nearest")
    train(model, [False] * STEPS)
    # What gradients take that are there from the start is more than is left beside this.
    allowed = reprise.report(model).predicted_peak_bytes + (64 << 10)
    reprise.remove(model)
    del model
    model = reprise.auto(network(), budget=allowed)

    train(model, [step >= SWITCH for step in range(STEPS)])

    report = reprise.report(model)
    reprise.remove(model)
    said = capfd.readouterr().err
    least = re.search(r"Such steps take ([\d.]+ [KM]iB), by the plan that needs least", said)
    assert least is not None, said
    assert report.over_budget_steps == STEPS - SWITCH
    assert f"Measured {least[1]}" in report.sentence
