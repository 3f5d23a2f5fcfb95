# SPDX-License-Identifier: Apache-2.0
"""The first step of every plan is checked, also where another plan has had its number."""

from __future__ import annotations

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from loops import deep
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, WIDTH)).square().mean().backward()
        optimizer.step()


def test_a_plan_that_follows_a_second_capture_begins_with_a_check() -> None:
    model, agent = deep(), LocalAgent()
    session = arm(model, agent, verify_every=1000)
    train(model, 6)
    assert [check["step"] for check in agent.checks] == [4]

    session.parts.planning.recapture("an op gives other bits every time")
    train(model, 4)

    assert session.job.stage is Stage.PLANNED
    # Step 7 is captured.
    assert [check["step"] for check in agent.checks] == [4, 8]


def test_a_plan_that_takes_the_place_of_another_begins_with_a_check() -> None:
    model, agent = deep(), LocalAgent()
    session = arm(model, agent, verify_every=1000)
    train(model, 6)
    rung = session.job.plans.rung
    assert rung is not None
    assert rung.plan is not None
    made = session.parts.planning.prepared(rung, rung.plan)
    assert not isinstance(made, str)

    session.parts.planning.apply(rung, made)
    train(model, 3)

    assert [check["step"] for check in agent.checks] == [4, 7]


class Doubles(nn.Module):
    """Computes in double precision by default, and leaves it to the loop to return from that."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = deep()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return (out.to(torch.get_default_dtype()) * torch.linspace(0.1, 0.7, WIDTH)).to(x.dtype)


def test_a_step_without_a_plan_is_compared_in_the_state_of_the_step() -> None:
    model, agent = Doubles(), LocalAgent()
    arm(model, agent, verify="gradients", verify_every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(8):
        optimizer.zero_grad()
        x = torch.randn(6, WIDTH)
        torch.set_default_dtype(torch.float64)
        try:
            out = model(x)
        finally:
            torch.set_default_dtype(torch.float32)
        out.square().mean().backward()
        optimizer.step()
        assert torch.get_default_dtype() is torch.float32

    assert sum(check["checked"] for check in agent.checks) > 0
    assert all(check["differing"] == 0 for check in agent.checks)
