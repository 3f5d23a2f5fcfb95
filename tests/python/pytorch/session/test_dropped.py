# SPDX-License-Identifier: Apache-2.0
"""Forwards whose graph is dropped, or never gets a backward, cost no step its plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from loops import curves, deep
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.policy.state import Stage
from reprise.torch.session.session import Session

pytestmark = pytest.mark.usefixtures("removed")

STEPS = 12
CAPTURED = 3

Extra = Callable[[nn.Module, list[Tensor]], None]


def skipped(model: nn.Module, kept: list[Tensor]) -> None:
    """A batch whose loss is not used."""
    model(torch.randn(6, WIDTH)).square().mean()


def twice_skipped(model: nn.Module, kept: list[Tensor]) -> None:
    skipped(model, kept)
    skipped(model, kept)


def looked_at(model: nn.Module, kept: list[Tensor]) -> None:
    """A validation with gradients, whose result is kept until the next one."""
    kept[:] = [model(torch.randn(6, WIDTH)).square().mean()]


WHEN = {
    "in the captured step": lambda step: step == CAPTURED,
    "in a planned step": lambda step: step == 6,
    "in every third step": lambda step: step % 3 == 0,
    "in all planned steps": lambda step: step > CAPTURED,
    "in every step": lambda step: True,
}


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("extra", [skipped, twice_skipped, looked_at])
def test_a_forward_that_is_dropped_costs_no_step_its_plan(
    extra: Extra, first: bool, when: str
) -> None:
    sessions: list[Session] = []

    def loop(armed: bool) -> list[str]:
        torch.manual_seed(1)
        model = deep()
        if armed:
            sessions.append(arm(model))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen = []
        kept: list[Tensor] = []
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            if first and WHEN[when](step):
                extra(model, kept)
            loss = model(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            if not first and WHEN[when](step):
                extra(model, kept)
            optimizer.step()
            seen.append(loss.item().hex())
        return seen

    curves(loop)

    (session,) = sessions
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.planned_steps >= 4
    assert session.job.measured.mismatched_steps == 0
    if extra is not looked_at:  # whose graph is alive beside the step
        assert session.job.record.verdict().over_budget_steps == 0


class Unrolled(nn.Module):
    """Reads as much of its input as there is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRUCell(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        low = high = x.new_zeros(x.shape[1], WIDTH)
        out = []
        for one in x:
            low = self.first(one, low)
            high = self.second(low, high)
            out.append(high)
        return torch.stack(out)


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_left_its_plan_holds_no_memory_when_it_is_over(seed: int) -> None:
    torch.manual_seed(1)
    model = Unrolled()
    session = arm(model, LocalAgent(share=0.6, seed=seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    alive = []
    for length in [12] * 6 + [5] * 2:
        optimizer.zero_grad()
        model(torch.randn(length, 64, WIDTH)).square().mean().backward()
        optimizer.step()
        alive.append(session.job.meter.live())

    assert session.job.measured.mismatched_steps
    assert set(alive[1:]) == {alive[0]}
