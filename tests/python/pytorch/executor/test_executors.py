# SPDX-License-Identifier: Apache-2.0
"""Both executors keep the protocol of the training loops, and the same events lead to the same
actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, nn

from reprise.agent import abi
from reprise.base.errors import RepriseError
from reprise.torch.check.result import CheckResult
from reprise.torch.executor.protocol import Executor, Handle, installed
from reprise.torch.joint.executor import JointGraph
from reprise.torch.joint.job import CompiledJob
from reprise.torch.policy.events import PlannedStepBegins, PlannedStepEnded
from reprise.torch.policy.policy import Action, decide
from reprise.torch.policy.state import JobState
from reprise.torch.training import job as jobs_of_all
from reprise.torch.training.loop import TrainingLoop

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("compiles_afresh")]

CHECKS = {Action.CHECK_VALUES, Action.CHECK_GRADIENTS, Action.CHECK_IF_AFFORDABLE}


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    return nn.Sequential(*layers)


@dataclass
class Trained:
    """A model that is trained under plans, by one of the executors."""

    loop: TrainingLoop
    call: nn.Module
    model: nn.Module
    agent: LocalAgent
    executor: Executor[Any, Any]
    graph: Callable[[], Any]  # that the installed plan is of
    limit: Callable[[int], None]  # makes another budget of the plan's
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.call(self.batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())

    def handle(self) -> Handle:
        (found,) = self.loop.handles
        return found


def eager() -> Trained:
    model, agent = mlp(), LocalAgent(share=0.5)
    session = arm(model, agent, warmup=2)

    def limit(budget_bytes: int) -> None:
        (planned,) = session.handles
        planned.plan = replace(planned.plan, budget_bytes=budget_bytes)

    return Trained(
        session, model, model, agent, session.executor, lambda: session.handles[0].graph, limit
    )


def compiled() -> Trained:
    torch._dynamo.reset()
    model, agent = mlp(), LocalAgent()
    called: nn.Module = torch.compile(model, backend="aot_eager")
    job = CompiledJob(called, "0.7x", 3, agent)  # type: ignore[arg-type]

    def limit(budget_bytes: int) -> None:
        job.joint.budget_bytes = budget_bytes

    return Trained(
        job,
        called,
        model,
        agent,
        job.joint.executor,
        lambda: JointGraph(job.joint.executor.handles[0].message, []),
        limit,
    )


MADE = {"eager": eager, "compiled": compiled}


@pytest.fixture(params=MADE)
def trained(request: pytest.FixtureRequest) -> Iterator[Trained]:
    made = MADE[request.param]()
    made.step(6)
    assert made.loop.handles, made.loop.standing
    yield made
    made.loop.remove()
    remove_all()


def unplanned(steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Returns the losses and the parameters of the same training without Reprise."""
    torch._dynamo.reset()
    model = mlp()
    plain = Trained(None, model, model, None, None, None, None)  # type: ignore[arg-type]
    plain.step(steps)
    return plain.losses, model.state_dict()


def test_an_executor_says_what_it_can_do_and_its_handle_what_a_step_did(trained: Trained) -> None:
    handle = trained.handle()
    stats = handle.stats()

    assert isinstance(handle, Handle)
    assert trained.executor.capabilities(trained.graph()).split(":")[0] in {"tape", "joint"}
    assert stats.recomputed > 0
    assert (stats.mismatches, stats.kept_all) == (0, False)
    assert trained.agent.steps[-1]["recomputed"] == stats.recomputed
    assert trained.agent.steps[-1]["plan_id"] == handle.plan.plan_number
    assert b'"ops"' in handle.graph_json()


def test_without_its_plan_a_model_trains_on_with_the_same_bits(trained: Trained) -> None:
    handle = trained.handle()
    plan, reported = handle.plan, len(trained.agent.steps)

    handle.remove()
    handle.remove()
    trained.step(3)

    losses, parameters = unplanned(9)
    assert trained.losses == losses
    found = trained.model.state_dict()
    assert all(torch.equal(found[name], parameters[name]) for name in parameters)
    assert not trained.loop.handles
    assert handle.plan is plan
    assert not any(step["flags"] & abi.STEP_PLANNED for step in trained.agent.steps[reported:])


def test_a_withdrawn_plan_is_reported_with_its_reason(trained: Trained) -> None:
    number = trained.handle().plan.plan_number

    trained.loop.job.withdraw(trained.loop.handles, "the test says so")
    trained.loop.job.withdraw(trained.loop.handles, "again")

    stopped = [state for state in trained.agent.states if state[1] == abi.PLAN_STOPPED]
    assert stopped == [(number, abi.PLAN_STOPPED, "the test says so")]


def test_a_plan_that_cannot_run_or_was_found_wrong_is_refused_and_changes_nothing(
    trained: Trained,
) -> None:
    handle, graph = trained.handle(), trained.graph()
    other = replace(handle.plan, decisions=(), schedule=handle.plan.schedule[:-3])

    with pytest.raises(RepriseError):
        trained.executor.install(graph, other)
    trained.loop.job.condemn(6, handle, CheckResult(1, ("weight",)))
    why = installed(trained.executor, graph, handle.plan)

    assert why == f"plan {handle.plan.plan_id} was found earlier to change gradients"
    assert trained.loop.handles == [handle]


def test_the_same_events_lead_to_the_same_actions(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, set[Action]]] = []

    def watched(state: Any, event: Any) -> tuple[JobState, tuple[Action, ...]]:
        after, actions = decide(state, event)
        seen.append((event, set(actions)))
        return after, actions

    monkeypatch.setattr(jobs_of_all, "decide", watched)
    trained.step(3)  # one of them is the third since the last check
    trained.limit(1)
    trained.step(1)

    begun = [(e, a) for e, a in seen if isinstance(e, PlannedStepBegins)]
    ended = [(e, a) for e, a in seen if isinstance(e, PlannedStepEnded)]
    assert [bool(actions & CHECKS) for _, actions in begun].count(True) in {1, 2}
    for begins, actions in begun:
        due = not begins.is_known or begins.since >= begins.every
        assert bool(actions & CHECKS) == due
    assert {(e.is_over, frozenset(a)) for e, a in ended} == {
        (False, frozenset({Action.COUNT})),
        (True, frozenset({Action.COUNT, Action.PEAK_ABOVE})),
    }
