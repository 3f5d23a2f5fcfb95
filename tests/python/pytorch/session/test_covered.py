# SPDX-License-Identifier: Apache-2.0
"""A plan's peak is that of the step it was made for: what a step of another kind or size runs
under, what happens if one exceeds the budget, and what is never discarded."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import compared, curves, deep, gradients, sgd, train
from nets import WIDTH, RandomNet
from torch import Tensor, nn

import reprise
from reprise.agent.agent import PlanReply
from reprise.plan import Plan
from reprise.torch.ladder.rung import Key, key_of
from reprise.torch.session.steps import capturing

pytestmark = pytest.mark.usefixtures("removed")


class Unhurried(LocalAgent):
    """An agent whose plan arrives only if the job waits for it."""

    def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
        return PlanReply("pending")

    def wait_plan(self, graph_id: int, have: int = 0, timeout_s: float = 60.0) -> PlanReply:
        return super().poll_plan(graph_id, have)


def test_a_step_of_another_data_type_waits_for_a_plan_of_its_own() -> None:
    agent = Unhurried()

    def loop(armed: bool) -> list[str]:
        model = RandomNet(3)
        if armed:
            arm(model, agent)
        losses = train(model, 6)
        model.double()
        return losses + train(model, 6, lambda _: torch.randn(6, WIDTH).double())

    curves(loop)

    plans = [s.get("plan_id", 0) for s in agent.steps]
    # Two plain, a captured one, three under its plan; the first in double is captured.
    assert plans == [0, 0, 0, 1, 1, 1, 0, 2, 2, 2, 2, 2]
    if sessions[0].job.meter.exact:
        assert sessions[0].job.record.verdict().over_budget_steps == 0


def test_another_parameter_type_or_autocast_is_another_kind_of_step() -> None:
    agent = Unhurried()

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(nn.Embedding(9, WIDTH), deep())
        if armed:
            arm(model, agent)

        def ids(_: int) -> Tensor:
            return torch.randint(0, 9, (6,))

        losses = train(model, 5, ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses += train(model, 3, ids)
        model.double()  # the input is what it was
        return losses + train(model, 3, ids)

    curves(loop)

    assert [s.get("plan_id", 0) for s in agent.steps] == [0, 0, 0, 1, 1, 0, 2, 2, 0, 3, 3]


def test_a_longer_and_narrower_input_is_not_covered() -> None:
    def key(*shape: int) -> Key:
        return key_of((torch.empty(shape),), {})

    assert key(4, 8).within(key(4, 8))
    assert key(4, 8).within(key(5, 8))
    assert not key(2, 9).within(key(4, 8))  # fewer elements, and more in a row
    assert not key_of((torch.empty(4, 8).double(),), {}).within(key(4, 8))


def test_a_step_that_no_plan_covers_runs_under_the_largest_and_is_logged_if_it_exceeds_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Once(LocalAgent):
        def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
            if graph_id > 1:
                return PlanReply("refused", why="Nothing fits.")
            return super().poll_plan(graph_id, have)

    agent = Once()
    models = []

    def loop(armed: bool) -> list[str]:
        model = nn.Sequential(deep(64), deep(64), deep(64))
        models.append(model)
        if armed:
            arm(model, agent)
        return train(model, 10, lambda step: torch.randn(64 if step < 5 else 256, 64))

    curves(loop)

    session = sessions[0]
    if session.job.meter.exact:
        assert (
            session.job.record.verdict().over_budget_steps == 0
        )  # of the plan: they are none of its steps
        assert session.job.measured.mismatched_steps == 4
        assert not reprise.report(models[-1]).validated
        assert capsys.readouterr().err.count("larger than any that has a plan") == 1
    assert [s.get("plan_id", 0) for s in agent.steps] == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("budget", ["0.5x", "1GiB"])
def test_other_live_tensors_reduce_a_budget_in_bytes_but_not_a_share(
    budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, beside = Unhurried(), []

    def loop(armed: bool) -> list[str]:
        beside.clear()
        model = RandomNet(3)
        if armed:
            arm(model, agent, budget=budget)
        losses = train(model, 6)
        beside.append(torch.ones(1 << 14))
        return losses + train(model, 3)

    curves(loop)

    session = sessions[0]
    if not session.job.meter.exact:
        pytest.skip("needs the exact meter")
    assert len(agent.graphs) == (1 if budget == "0.5x" else 2)
    if budget == "1GiB":
        first, second = agent.reserves
        assert (1 << 16) - 2048 <= second - first <= 1 << 16
        assert agent.graphs[0] == agent.graphs[1]
        plans = [s["plan_id"] for s in agent.steps[5:]]
        assert plans == [1, 2, 2, 2]  # the first step beside it has room
        assert capsys.readouterr().err.count("requesting a plan for such steps") == 1
    assert session.job.record.verdict().over_budget_steps == 0


class Full(Unhurried):
    """An agent that makes no plan in the place of another."""

    def submit_graph(self, text: bytes, budget: str, *args: Any, **more: Any) -> int:
        number = super().submit_graph(text, budget, *args, **more)
        if more.get("replaces"):
            self.refused[number] = "Nothing fits."
        return number

    def wait_plan(self, graph_id: int, have: int = 0, timeout_s: float = 60.0) -> PlanReply:
        if graph_id in self.refused:
            return PlanReply("refused", why=self.refused[graph_id])
        return super().wait_plan(graph_id, have, timeout_s)


@pytest.mark.parametrize("fits", [True, False])
def test_a_step_whose_loss_has_grown_gets_a_plan_with_room_or_is_captured_again_once(
    fits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Unhurried() if fits else Full()

    def one(model: nn.Module, step: int) -> list[Tensor]:
        first, second = model(torch.randn(6, WIDTH))
        loss = first.square().mean() + second.square().mean()
        if step > 6:
            loss = loss + (torch.ones(1 << 15) * loss).exp().mean()
        loss.backward()
        return [loss]

    compared(lambda: RandomNet(3), one, 14, agent, verify_every=0)

    if not sessions[0].job.meter.exact:
        pytest.skip("needs the exact meter")
    said = capsys.readouterr().err
    assert said.count("requesting a plan that leaves room for it") == 1
    assert said.count("captured again") == (not fits)
    assert (agent.graphs[0] == agent.graphs[1], len(agent.graphs)) == (True, 2 if fits else 3)
    assert [s["plan_id"] for s in agent.steps[-3:]] == [len(agent.graphs)] * 3
    assert [s["flags"] for s in agent.steps].count(8) == (1 if fits else 2)
    assert sessions[0].job.record.verdict().over_budget_steps <= 2


class Routed(nn.Module):
    """Experts, whose number of rows the data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Sequential(*(deep(32) for _ in range(4))), deep(32)])

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, 0] > 0
        parts = [
            expert(x[rows]) for expert, rows in zip(self.experts, (first, ~first), strict=True)
        ]
        return torch.cat(parts).square()


class WithRoom(Unhurried):
    """An agent whose later plans recompute more, as if they were to leave more room."""

    def make(self, graph: dict[str, Any], number: int) -> Plan:
        self.share = 1.0 if number > 1 else 0.3
        before = self.reserves[number - 1]
        self.reserves[number - 1] = 0
        plan = super().make(graph, number)
        self.reserves[number - 1] = before
        if number == 1:
            self.first = plan
        return replace(plan, budget_bytes=self.first.budget_bytes)


def test_sizes_that_vary_while_the_input_does_not_are_held_back_after_the_first_excess() -> None:
    agent = WithRoom()
    shares = [0.5, 0.5, 0.5, 0.5, 0.5, 0.9, 0.6, 0.9, 0.2, 0.9, 0.5, 0.9]

    def one(model: nn.Module, step: int) -> list[Tensor]:
        x = torch.rand(512, 32)
        x[int(512 * shares[step]) :, 0] *= -1
        loss = model(x).mean()
        loss.backward()
        return [loss]

    compared(Routed, one, len(shares), agent, verify_every=0)

    if not sessions[0].job.meter.exact:
        pytest.skip("needs the exact meter")
    assert len(agent.graphs) == 2
    assert agent.graphs[0] == agent.graphs[1]
    budget = agent.first.budget_bytes
    assert [s["peak_bytes"] > budget for s in agent.steps[3:]] == [False] * 2 + [True] + [False] * 6


def test_a_check_of_one_model_does_not_count_in_the_peak_of_another() -> None:
    agent = LocalAgent()
    first, second = deep(), deep(256)
    arm(first, agent), arm(second, agent, verify_every=1)
    of_first, of_second = sgd(first), sgd(second)
    for _ in range(10):
        loss = first(torch.randn(6, WIDTH)).square().mean()
        of_second.zero_grad()
        second(torch.randn(512, 256)).square().mean().backward()
        of_second.step()
        of_first.zero_grad()
        loss.backward()
        of_first.step()

    if not sessions[0].job.meter.exact:
        pytest.skip("needs the exact meter")
    own = next(s for s in sessions if s.job.model is first)
    assert sessions[1].job.record.verdict().checks > 3
    rung = own.job.plans.rung
    assert rung is not None
    assert rung.plan is not None
    assert own.job.record.verdict().over_budget_steps == 0


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after the first"])
@pytest.mark.usefixtures("half")
def test_tensors_that_two_backwards_of_one_graph_need_are_recomputed_for_each(late: bool) -> None:
    agent = LocalAgent(again=1.0, late=late)
    made = nn.Sequential(deep(128), deep(128))

    def one(model: nn.Module, step: int) -> list[Tensor]:
        out = model(torch.randn(256, 128))
        out.cos().mean().backward(retain_graph=True)
        out.square().mean().backward()
        return gradients(model)

    compared(lambda: copy.deepcopy(made), one, agent=agent)

    graph = agent.graphs[0]
    forward = {s for op in graph["ops"] if op["phase"] == "PHASE_FORWARD" for s in op["writes"]}
    of_both = [
        s
        for s in forward
        if sum(op["phase"] == "PHASE_BACKWARD" and s in op["reads"] for op in graph["ops"]) > 1
    ]
    given_up = [s for s in of_both if not graph["storages"][s]["pinned"]]
    assert len(given_up) > 6
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert agent.steps[-1]["recomputed"] >= (1 if late else 2) * len(given_up)
    assert all(c["differing"] == 0 for c in agent.checks)
    assert all(c["checked"] > 0 for c in agent.checks)
    if sessions[0].job.meter.exact:
        assert agent.steps[-1]["peak_bytes"] <= agent.plan_peak + 8192


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after the first"])
def test_more_or_fewer_backwards_than_captured_give_equal_gradients_and_are_counted(
    late: bool,
) -> None:
    agent = LocalAgent(again=1.0, late=late)

    def one(model: nn.Module, step: int) -> list[Tensor]:
        loss = model(torch.randn(6, WIDTH)).square().mean()
        passes = {6: 3, 8: 1}.get(step, 2)
        for number in range(passes):
            loss.backward(retain_graph=number + 1 < passes)
        return gradients(model)

    compared(lambda: nn.Sequential(deep(), deep()), one, 10, agent)

    left = [step["step"] for step in agent.steps if step.get("mismatches", 0)]
    assert left == [7]
    assert sum(step["recomputed"] > 0 for step in agent.steps) > 3


def test_tensors_that_a_double_backward_holds_are_never_recomputed() -> None:
    agent = LocalAgent(again=1.0)

    def one(model: nn.Module, step: int) -> list[Tensor]:
        x = torch.randn(128, 64, requires_grad=True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + grad.square().mean()).backward()
        return [grad]

    compared(lambda: nn.Sequential(deep(64), deep(64)), one, agent=agent)

    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert all(c["differing"] == 0 for c in agent.checks)
    if sessions[0].job.meter.exact:
        assert sessions[0].job.record.verdict().over_budget_steps == 0


def test_an_input_too_large_to_be_captured_runs_under_the_largest_plan_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Tight(nn.Module):
        """A model that fits only under a plan if its input is large."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = deep(), deep()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if len(x) > 6 and capturing() is not None:
                raise torch.OutOfMemoryError("too much")
            return self.last(x)

    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = Tight()
        if armed:
            arm(model, agent, verify_every=0)
        return train(model, 10, lambda step: torch.randn(6 if step < 5 else 9, WIDTH))

    curves(loop)

    assert len(agent.graphs) == 1
    assert all(s["recomputed"] for s in agent.steps[3:])
    assert capsys.readouterr().err.count("while an input of its size is new") == 1


class OnTheSide(nn.Module):
    """A branch on a side stream. On the CPU it has no queue."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side, self.last = deep(), deep(), deep()
        self.stream = torch.cpu.Stream()

    def forward(self, x: Tensor) -> Tensor:
        h = self.main(x)
        with torch.cpu.stream(self.stream):
            aside = self.side(h).sin()
        return self.last(h.cos() + aside)


def test_tensors_of_a_side_stream_are_kept_and_the_rest_is_planned() -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = OnTheSide()
        if armed:
            arm(model, agent)
        return train(model, 9)

    curves(loop)

    graph = agent.graphs[0]
    kinds = {
        at: {op["kind"] for op in graph["ops"] if op["module"].startswith(at) and op["writes"]
             and op["phase"] == "PHASE_FORWARD"}
        for at in ("main", "side", "last")
    }  # fmt: skip
    assert kinds["side"] == {"OP_KIND_ONCE"}
    assert "OP_KIND_PURE" in kinds["main"] & kinds["last"]
    touched = {
        s for op in graph["ops"] if op["module"].startswith("side") for s in op["reads"] if op["id"]
    }
    assert all(graph["storages"][s]["pinned"] for s in touched if op_of(graph, s) == "forward")
    assert sessions[0].job.measured.planned_steps == 6
    assert agent.steps[-1]["recomputed"] > 0
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert all(c["differing"] == 0 and c["checked"] for c in agent.checks)


def op_of(graph: dict[str, Any], storage: int) -> str:
    """Returns the phase in which a storage is made."""
    made = next(op for op in graph["ops"] if storage in op["writes"])
    return "forward" if made["phase"] == "PHASE_FORWARD" and made["id"] else "elsewhere"
