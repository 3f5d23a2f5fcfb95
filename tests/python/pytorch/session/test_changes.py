# SPDX-License-Identifier: Apache-2.0
"""Models that change, that keep what they compute, or that others take apart: they train on."""

from __future__ import annotations

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import compared, curves, deep, sgd, train
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")


def test_a_model_that_changes_its_data_type_trains_bit_for_bit_the_same() -> None:
    def loop(armed: bool) -> list[str]:
        model = deep()
        if armed:
            arm(model)
        losses = train(model, 6)
        model.double()
        return losses + train(model, 10, lambda step: torch.randn(6, WIDTH).double())

    curves(loop)

    assert sessions[0].job.stage is Stage.PLANNED


def test_a_new_head_is_trained_and_captured() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(), nn.Linear(WIDTH, 4))
        if armed:
            arm(model, agent)
        losses = train(model, 6)
        model[1] = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, 2)
        )
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    curves(loop)

    assert sessions[0].job.stage is Stage.PLANNED
    assert agent.steps[-1]["mismatches"] == 0


@pytest.mark.parametrize("first", ["auto", "plain"])
def test_a_step_that_has_grown_for_good_runs_under_its_own_plan(
    first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(), nn.Linear(WIDTH, 4))
        if armed:
            arm(model, agent, first=first, verify_every=0)
        losses = train(model, 14, lambda _: torch.randn(512, WIDTH))
        model[1] = nn.Sequential(*(deep() for _ in range(3)))
        return losses + train(model, 16, lambda _: torch.randn(512, WIDTH))

    curves(loop)

    session = sessions[0]
    rung = session.job.plans.rung
    assert rung is not None
    if session.job.meter.exact:
        assert rung.graph.measured_peak_bytes == pytest.approx(rung.graph.step.peak_bytes, rel=0.1)
    assert [step["mismatches"] for step in agent.steps[-3:]] == [0, 0, 0]
    assert "more memory is in use" not in capsys.readouterr().err


def test_hidden_states_that_the_program_keeps_are_correct() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(deep() for _ in range(3))
            self.hidden: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.hidden = []
            for layer in self.layers:
                x = layer(x)
                self.hidden.append(x)
            return x

    agent = LocalAgent()

    def one(model: Keeping, step: int) -> list[Tensor]:
        out = model(torch.randn(6, WIDTH))
        loss = out.mean() + sum(h.square().mean() for h in model.hidden)
        loss.backward()
        return [loss, *model.hidden]

    compared(Keeping, one, agent=agent)

    assert sessions[0].job.stage is Stage.PLANNED
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert all(c["checked"] > 3 and c["differing"] == 0 for c in agent.checks)


class Scaled(Tensor):
    """A tensor subclass that goes through every op."""


def test_tensor_subclasses_pass_through() -> None:
    def loop(armed: bool) -> list[str]:
        model = deep()
        if armed:
            arm(model, verify_every=0)
        return train(model, 8, lambda step: torch.randn(6, WIDTH).as_subclass(Scaled))

    curves(loop)


@pytest.mark.train
@pytest.mark.parametrize("first", ["armed", "compiled"])
def test_a_compiled_model_trains_on_unchanged(first: str) -> None:
    def loop(armed: bool) -> list[str]:
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        if armed and first == "armed":
            arm(model)
        call = torch.compile(model, backend="aot_eager")
        if armed and first == "compiled":
            arm(model)
        optimizer = sgd(model)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = call(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    curves(loop)


@pytest.mark.usefixtures("half")
def test_a_storage_that_is_read_as_another_type_is_kept_and_no_bit_changes() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.turn = nn.Parameter(torch.polar(torch.ones(WIDTH // 2), torch.rand(WIDTH // 2)))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                pairs = torch.view_as_complex(layer(x).sigmoid().reshape(-1, WIDTH // 2, 2))
                turned = pairs + self.turn  # saves nothing, reads pairs as complex numbers
                x = torch.view_as_real(turned * turned * self.turn).flatten(1).tanh()
            return x

    agent = LocalAgent(again=0.8)

    def loop(armed: bool) -> list[str]:
        model = Turned()
        if armed:
            arm(model, agent, verify_every=0)
        return train(model, 9)

    curves(loop)

    assert sessions[0].job.measured.planned_steps > 0
    assert [step["mismatches"] for step in agent.steps] == [0] * len(agent.steps)
    assert agent.steps[-1]["recomputed"] > 0
