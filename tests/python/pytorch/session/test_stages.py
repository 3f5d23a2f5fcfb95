# SPDX-License-Identifier: Apache-2.0
"""Several stages of a pipeline on one rank train as one model under one plan."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all, sessions
from local_agent import LocalAgent
from nets import WIDTH
from torch import nn

import reprise
from reprise.base.errors import RepriseError
from reprise.torch.job.stages import Stages, stages_around
from reprise.torch.policy.state import Stage
from reprise.torch.training import armed
from reprise.torch.training.loop import open_loops


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


def made() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(WIDTH))
        for _ in range(2)
    ]


def train(stages: list[nn.Module], steps: int) -> list[str]:
    """Trains as an interleaved schedule does: both stages forward, then both backward, for three
    micro-batches; returns the losses to the last bit."""
    first, second = stages
    optimizer = torch.optim.SGD([p for s in stages for p in s.parameters()], lr=0.05)
    losses = []
    torch.manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        sent = [first(torch.randn(16, WIDTH)) for _ in range(3)]
        got = [x.detach().requires_grad_() for x in sent]
        found = [second(x).square().mean() for x in got]
        for loss in found:
            loss.backward()
        for x, y in zip(sent, got, strict=True):
            x.backward(y.grad)
        optimizer.step()
        losses.append(sum(loss.item() for loss in found).hex())
    return losses


def arm_both(stages: list[nn.Module], agent: LocalAgent) -> Any:
    session = arm(Stages(stages), agent)
    for stage in stages:
        armed.add(stage, session)
    return session


def test_stages_share_one_graph_and_one_plan_and_no_bit_changes() -> None:
    expected = train(made(), 8)
    stages, agent = made(), LocalAgent()
    session = arm_both(stages, agent)

    found = train(stages, 8)

    assert found == expected
    assert session.job.stage is Stage.PLANNED
    assert len(agent.graphs) == 1
    modules = {op["module"].partition(".")[0] for op in agent.graphs[0]["ops"]}
    assert {"0", "1"} <= modules
    assert len(session.job.plans.ladder.rungs[0].graph.step.regions) == 6
    report = reprise.report(stages[1])
    assert (report.planned_steps, report.mismatched_steps) == (5, 0)
    assert report.values_equal
    assert report.measured_peak_bytes <= report.predicted_peak_bytes


def test_removing_one_stage_removes_what_they_share() -> None:
    stages = made()
    keys = [set(vars(stage)) for stage in stages]
    session = arm_both(stages, LocalAgent())
    train(stages, 6)

    reprise.remove(stages[0])

    assert [set(vars(stage)) for stage in stages] == keys
    assert session.job.stage is Stage.PLAIN
    assert [armed.current(stage) for stage in stages] == [None, None]
    train(stages, 1)


def test_stages_are_freed_with_their_last_user_and_pickled_without_each_other() -> None:
    stages = made()
    session = arm_both(stages, LocalAgent())
    train(stages, 6)
    copied = pickle.loads(pickle.dumps(stages[0]))
    assert "forward" not in vars(copied)
    sessions.clear()

    alive = [weakref.ref(stage) for stage in stages]
    stages.clear()
    gc.collect()

    assert [one() for one in alive] == [None, None]
    assert session not in open_loops


def test_stages_of_which_one_is_armed_alone_are_refused() -> None:
    stages = made()
    arm(stages[1])
    with pytest.raises(RepriseError, match="already armed"):
        reprise.auto(stages, budget="0.5x")


def test_the_stages_of_a_running_schedule_are_found() -> None:
    stages = made()
    schedule: dict[str, Any] = {"__name__": "torch.distributed.pipelining.schedules"}
    exec(
        "class Schedule:\n    def step(self, called):\n        return called()\n"
        "class Stage:\n    def __init__(self, submod):\n        self.submod = submod\n",
        schedule,
    )
    running = schedule["Schedule"]()
    running._stages = [schedule["Stage"](stage) for stage in stages]

    assert running.step(stages_around) == stages
    assert stages_around() == []


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def scheduled(kind: str, stages: list[nn.Module], steps: int) -> list[str]:
    """Trains both stages under a schedule of PyTorch; returns the losses to the last bit."""
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    device = torch.device("cpu")
    parts = [
        pipelining.PipelineStage(stage, number, 2, device) for number, stage in enumerate(stages)
    ]
    schedule = getattr(pipelining.schedules, kind)(
        parts, 4, loss_fn=lambda y, target: (y - target).square().mean()
    )
    optimizer = torch.optim.SGD([p for s in stages for p in s.parameters()], lr=0.05)
    found: list[str] = []
    torch.manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        losses: list[Any] = []
        schedule.step(torch.randn(32, WIDTH), target=torch.randn(32, WIDTH), losses=losses)
        optimizer.step()
        found += [loss.item().hex() for loss in losses]
    return found


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", ["ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"])
def test_a_schedule_that_splits_backwards_is_refused_and_others_are_planned(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = scheduled(kind, made(), 6)
    stages = made()
    session = arm_both(stages, LocalAgent())

    found = scheduled(kind, stages, 6)

    assert found == expected
    refused = "ZeroBubble" in kind
    assert session.job.stage is (Stage.PLAIN if refused else Stage.PLANNED)
    assert ("in two halves (zero bubble)" in session.job.why) is refused
    assert capsys.readouterr().err.count("zero bubble") == refused
