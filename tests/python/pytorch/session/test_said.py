# SPDX-License-Identifier: Apache-2.0
"""A job without a plan logs why, and a job above its budget logs that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from loops import sgd, train
from nets import WIDTH
from torch import Tensor, nn

from reprise.agent.agent import PlanReply
from reprise.torch.policy.state import Stage
from reprise.torch.session import api, waiting
from reprise.torch.session.peaks import Peaks
from reprise.torch.training.measure import Steps

pytestmark = pytest.mark.usefixtures("removed")


class Part(nn.Module):
    """A module that is large inside when it is not frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).sin().exp().tanh().sigmoid()
        return self.last(x)  # type: ignore[no-any-return]


def test_a_module_whose_forward_the_loop_never_calls_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Part()
    arm(model)
    optimizer = sgd(model)

    for _ in range(20):
        optimizer.zero_grad()
        model.last(model.first(torch.randn(6, WIDTH))).sum().backward()
        optimizer.step()

    said = capsys.readouterr().err
    never = "the forward of this model was never called with gradients; its parts first, last are"
    assert said.count(f"no plan yet: {never}") == 1
    assert "Call reprise.auto with each of them" in said


def test_a_loop_without_an_optimizer_logs_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Part()
    arm(model)

    for _ in range(70):
        model(torch.randn(6, WIDTH)).sum().backward()

    said = capsys.readouterr().err
    assert said.count("64 forwards, and no optimizer of torch.optim has stepped") == 1


@pytest.mark.parametrize(
    ("uneven", "why"),
    [(True, "micro-batches have several sizes"), (False, "the data decides sizes within the step")],
)
def test_what_may_exceed_the_budget_one_day_is_said_with_its_reason(uneven: bool, why: str) -> None:
    said: list[str] = []
    measured = SimpleNamespace(under=lambda _: Steps(count=8, peak_bytes=3 << 20))
    job: Any = SimpleNamespace(measured=measured, say=said.append)
    planning: Any = SimpleNamespace(needs_more=lambda rung, more: more == 2 << 20)
    plan = SimpleNamespace(peak_bytes=1 << 20, budget_bytes=2 << 20)
    rung: Any = SimpleNamespace(number=1, plan=plan, uneven=uneven, awaited=False)

    Peaks(job, planning).ahead(rung)

    assert said == [
        f"{why}, and by 8 steps one of many more may peak at 3.0 MiB, above 2.0 MiB; requesting a "
        "plan that leaves room for it"
    ]
    assert rung.awaited


@pytest.mark.parametrize("training", [True, False])
def test_a_loop_that_trains_the_input_of_a_frozen_model_is_told_why_it_has_no_plan(
    training: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Part().requires_grad_(False).train(training)
    session = arm(model)
    image = torch.randn(6, WIDTH, requires_grad=True)
    optimizer = torch.optim.SGD([image], lr=0.1)

    for _ in range(8):
        optimizer.zero_grad()
        model(image).sum().backward()
        optimizer.step()
    session.close()

    said = capsys.readouterr().err
    assert said.count("no plan was made: no optimizer of torch.optim has stepped for this") == 1


def test_a_lost_collector_is_reported_even_if_no_plan_was_requested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, agent = Part(), LocalAgent()
    arm(model, agent)
    agent.status, agent.why = "inert", "the collector closed the connection"

    train(model, 14)

    said = capsys.readouterr().err
    assert said.count("no plan in 10 steps in a row: the collector closed the connection") == 1


def test_steps_before_the_plan_are_counted_against_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Part()
    session = arm(model, LocalAgent(), budget="1000B", verify_every=0)

    train(model, 7, lambda _: torch.ones(900, WIDTH))

    said = capsys.readouterr().err
    report = api.report(model)
    assert session.job.stage is Stage.PLANNED
    assert said.count("3 steps ran before the plan and peaked at ") == 1
    assert report.unplanned_over_budget_steps == 3
    assert report.unplanned_steps == 3


@pytest.mark.parametrize("threshold", ["", "1000000"])
def test_a_job_that_peaked_high_before_its_plan_logs_what_its_process_keeps(
    threshold: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "MUCH", 1000)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    if threshold:
        monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", threshold)
    model = Part()
    arm(model, LocalAgent(), budget="1000B", verify_every=0)

    train(model, 4, lambda _: torch.ones(900, WIDTH))

    said = capsys.readouterr().err
    told = "The process's own memory hardly falls from there: malloc keeps what is freed"
    assert said.count(told) == (not threshold)


def test_a_refused_job_logs_that_it_runs_above_its_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, agent = Part(), LocalAgent()
    agent.refuse = "Nothing fits in 1000 B: op 17 needs at least 2000 B."
    arm(model, agent, budget="1000B")

    train(model, 7)

    said = capsys.readouterr().err
    assert said.count("ran without a plan and peaked at ") == 1
    assert "over the budget of 1000 B, as the next will" in said
    assert api.report(model).unplanned_over_budget_steps == 7


def test_after_a_refusal_a_plan_is_requested_again_only_when_the_step_has_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, agent = Part(), LocalAgent()
    agent.refuse = "Nothing fits in 1000 B: op 17 needs at least 2000 B."
    session = arm(model, agent)
    train(model, 12)
    assert len(agent.graphs) == 1
    assert session.job.stage is Stage.PLAIN
    agent.refuse = ""

    losses = train(model, 12, lambda _: torch.ones(600, WIDTH))

    said = capsys.readouterr().err
    assert len(losses) == 12
    assert session.job.stage is Stage.PLANNED
    assert said.count("this step differs from the one whose budget was refused") == 1
    assert len(agent.graphs) == 2


def test_a_share_that_is_refused_for_one_input_is_requested_for_larger_ones() -> None:
    model, agent = Part(), RefusesTheFirst()
    session = arm(model, agent)
    sizes = (100, 100, 100, 600, 1200)

    train(model, 30, lambda n: torch.ones(sizes[n % 5], WIDTH))

    sizes_asked_for = [graph["measured_peak_bytes"] for graph in agent.graphs]
    assert session.job.stage is Stage.PLANNED
    assert sizes_asked_for == sorted(sizes_asked_for)
    assert session.job.plans.ladder.captures <= 3
    assert api.report(model).planned_steps >= 12


class RefusesTheFirst(LocalAgent):
    def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
        why = "Nothing fits in 1000 B: op 17 needs at least 2000 B."
        if graph_id == 1:
            return PlanReply("refused", why=why, smallest_budget=2000)
        return super().poll_plan(graph_id, have)


def test_a_step_that_never_settles_is_not_captured_again_and_again() -> None:
    model, agent = Part(), LocalAgent()
    agent.refuse = "Nothing fits in 1000 B: op 17 needs at least 2000 B."
    arm(model, agent)
    train(model, 6)

    for size in range(1, 9):
        train(model, 16, lambda _, rows=40**2 * size: torch.ones(rows, WIDTH))

    assert len(agent.graphs) <= 6
