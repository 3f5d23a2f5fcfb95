# SPDX-License-Identifier: Apache-2.0
"""Models that are trained in the same steps: planned as one, or in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import curves, deep, sgd
from torch import Tensor, nn

import reprise
from reprise.torch.job.job import Options
from reprise.torch.policy.state import Stage
from reprise.torch.session import start as starting
from reprise.torch.session.session import Session
from reprise.torch.training import armed

pytestmark = pytest.mark.usefixtures("removed")

WIDTH, ROWS = 64, 128

Step = Callable[[nn.Module, nn.Module, list[torch.optim.Optimizer]], Tensor]


@pytest.fixture(autouse=True)
def starts_as_the_test_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a session that takes the place of others report to the agent of the first of them."""

    def start(model: nn.Module, options: Options) -> Session:
        agent: Any = sessions[0].job.agent
        return arm(model, agent, **asdict(options))

    monkeypatch.setattr(starting, "_start", start)


def ready(model: nn.Module, agent: LocalAgent, **options: Any) -> Session:
    """Arms a model as `reprise.auto` does: another loop may take the place of its own."""
    session = arm(model, agent, **options)
    starting._may_hand_over(session)
    return session


def at_once(coarse: nn.Module, fine: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Tensor:
    x = torch.randn(ROWS, WIDTH)
    first = coarse(x)
    loss = first.square().mean() + fine(x + first).square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss


def adversaries(
    coarse: nn.Module, fine: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> Tensor:
    made = coarse(torch.randn(ROWS, WIDTH))
    loss = (fine(torch.randn(ROWS, WIDTH)) - fine(made.detach())).square().mean()
    optimizers[1].zero_grad()
    loss.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    fine(made).square().mean().backward()
    optimizers[0].step()
    return loss


def in_turns(coarse: nn.Module, fine: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Tensor:
    loss = torch.zeros(())
    for model, optimizer in zip((coarse, fine), optimizers, strict=True):
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
    return loss


def both(
    agent: LocalAgent,
    one: Step = at_once,
    steps: int = 14,
    shared: bool = False,
    budgets: tuple[str, str] = ("0.5x", "0.5x"),
    late: int = 0,
) -> list[nn.Module]:
    """Trains two models in one loop, without and with Reprise, and compares the losses. `late`: the
    steps before the second is armed."""
    models: list[nn.Module] = []

    def loop(watched: bool) -> list[str]:
        torch.manual_seed(3)
        models[:] = [deep(WIDTH), nn.Sequential(*(deep(WIDTH) for _ in range(4)))]
        coarse, fine = models
        if watched:
            ready(coarse, agent, budget=budgets[0])
        optimizers = [sgd(coarse), sgd(fine)]
        if shared:
            optimizers = [sgd(nn.ModuleList(models))]
        losses = []
        for step in range(steps):
            if watched and step == late:
                ready(fine, agent, budget=budgets[1])
            losses.append(one(coarse, fine, optimizers).item().hex())
        return losses

    curves(loop)
    return models


@pytest.mark.parametrize("one", [at_once, adversaries], ids=["at once", "adversaries"])
@pytest.mark.parametrize("shared", [False, True], ids=["two optimizers", "one optimizer"])
def test_models_of_one_loop_and_one_budget_share_one_graph_and_one_plan(
    one: Step, shared: bool
) -> None:
    if shared and one is adversaries:
        pytest.skip("they have two")
    agent = LocalAgent()

    models = both(agent, one, shared=shared)

    assert armed.current(models[0]) is armed.current(models[1])
    assert len(agent.graphs) == 1
    assert {op["module"].partition(".")[0] for op in agent.graphs[0]["ops"]} >= {"0", "1"}
    report = reprise.report(models[0])
    assert report == reprise.report(models[1])
    assert report.planned_steps >= 5
    assert (report.mismatched_steps, report.over_budget_steps) == (0, 0)
    assert report.values_equal
    if sessions[-1].job.meter.exact:
        assert report.validated


def test_a_model_that_joins_a_planned_one_is_planned_with_it() -> None:
    agent = LocalAgent()

    models = both(agent, steps=20, late=7)

    assert armed.current(models[0]) is armed.current(models[1])
    assert len(agent.graphs) == 2
    assert reprise.report(models[1]).planned_steps >= 5
    assert reprise.report(models[1]).mismatched_steps == 0


def test_models_that_step_in_turns_keep_plans_of_their_own() -> None:
    agent = LocalAgent()

    models = both(agent, in_turns)

    loops = [armed.current(model) for model in models]
    assert loops[0] is not loops[1]
    assert [loop.standing[0] for loop in loops if loop] == [Stage.PLANNED.value] * 2
    assert len(agent.graphs) == 2


class Halves(LocalAgent):
    """Refuses the coarse net's graph, whichever it is."""

    def submit_graph(self, text: bytes, budget: str, *args: Any, **more: Any) -> int:
        number = super().submit_graph(text, budget, *args, **more)
        if budget == "0.4x":
            self.refused[number] = "Nothing fits."
        return number


@pytest.mark.parametrize("shared", [False, True], ids=["two optimizers", "one optimizer"])
def test_a_refused_model_is_not_captured_again_because_another_ones_plan_lowers_the_peak(
    shared: bool,
) -> None:
    agent = Halves()

    models = both(agent, steps=24, budgets=("0.4x", "0.5x"), shared=shared)

    assert len(agent.graphs) == 2
    coarse, fine = (reprise.report(model) for model in models)
    assert coarse.stage == Stage.PLAIN.value
    assert fine.planned_steps >= 10
    assert fine.mismatched_steps == 0
    if sessions[-1].job.meter.exact:
        assert fine.validated
        assert fine.over_budget_steps == 0


def test_models_with_two_budgets_are_both_captured_before_either_is_planned() -> None:
    agent = LocalAgent()

    both(agent, budgets=("0.6x", "0.5x"))

    flags = [s["flags"] for s in agent.steps]
    assert flags.count(8) == 2
    assert not any(flag & 1 for flag in flags[: len(flags) - flags[::-1].index(8)])
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
