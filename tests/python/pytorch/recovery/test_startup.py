# SPDX-License-Identifier: Apache-2.0
"""Jobs that do not fit before they are planned: their first steps run differently, with the same
bits."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from nets import WIDTH, RandomNet
from torch import Tensor, nn

from reprise.agent import abi
from reprise.agent.agent import PlanReply
from reprise.base.units import format_bytes
from reprise.torch.capture.capture import Capture
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation import sketch
from reprise.torch.estimation.once import capture_step
from reprise.torch.estimation.sketch import sketched
from reprise.torch.estimation.updates import needs_of, optimizers_of
from reprise.torch.meter.room import Room, room_on
from reprise.torch.meter.state import alive_bytes
from reprise.torch.planning import request
from reprise.torch.policy.state import Stage
from reprise.torch.recovery import startup
from reprise.torch.training import load

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


class Wide(nn.Module):
    """Saves much and computes little; draws random numbers and has statistics."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.norm = nn.BatchNorm1d(32)
        self.least = 1 << 62  # bytes; the forward fails when fewer are free
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        x = self.norm(x)
        for linear in self.inner:
            x = torch.nn.functional.dropout(linear(x).sin().exp().tanh(), 0.1)
        return x


def train(model: nn.Module, steps: int, seed: int = 3) -> list[float]:
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(256, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made() -> Wide:
    torch.manual_seed(0)
    return Wide()


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], dict[str, Tensor]]:
    torch.set_num_threads(1)
    model = made()
    return train(model, 20), model.state_dict()


def same(model: nn.Module, losses: list[float], expected: Any) -> bool:
    state = model.state_dict()
    return losses == expected[0] and all(torch.equal(state[n], v) for n, v in expected[1].items())


def test_a_step_under_the_plan_of_the_captured_step_is_recorded_in_detail() -> None:
    agent, model = LocalAgent(), made()
    session = arm(model, agent, first="auto")

    train(model, 14)

    rung = session.job.plans.rung
    assert rung is not None
    assert rung.plan is not None
    assert not rung.sketch
    traced = [one for one in agent.steps if one["flags"] & abi.STEP_WINDOW]
    assert rung.plan.plan_number in [one["plan_id"] for one in traced]


@pytest.mark.parametrize("first", ["auto", "plain"])
def test_the_plan_of_the_captured_step_is_compared_with_what_was_measured_once(
    first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made()
    arm(model, LocalAgent(), first=first)

    train(model, 20)

    assert capsys.readouterr().err.count("reprise: measured ") == 1


def test_the_base_is_as_busy_as_the_steps_under_the_plan_from_shapes_that_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made()
    session = arm(model, LocalAgent(), first="auto")
    waited, before = 0, time.perf_counter_ns()

    def now() -> tuple[int, int, int]:
        nonlocal waited, before
        rung, passed = session.job.plans.rung, time.perf_counter_ns() - before
        before += passed
        if rung is not None and rung.sketch and session.job.stage is not Stage.CAPTURE:
            waited += passed * 9 // 10
        return 1, before, waited

    monkeypatch.setattr(load._Waits, "now", lambda _: now())

    train(model, 20)

    assert "90 % of the time when the base was measured" in session.job.record.verdict().other_load


def test_no_step_is_above_the_budget_and_no_bit_changes(
    expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, model = LocalAgent(), made()
    session = arm(model, agent, first="auto")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLANNED
    measured, verdict = session.job.measured, session.job.record.verdict()
    assert measured.plain_steps == measured.mismatched_steps == verdict.over_budget_steps == 0
    assert verdict.checks > 0
    assert verdict.checks_differing == 0
    said = capsys.readouterr().err
    assert said.count("the first steps run under a plan made from their shapes alone") == 1
    assert [graph["flavour"] for graph in agent.graphs] == ["eager-shapes", "eager-dispatch"]
    # The captured step, too, is reported as one under a plan.
    assert len(agent.steps) == 20
    assert all(step["flags"] & abi.STEP_PLANNED for step in agent.steps)


@pytest.mark.filterwarnings("error:The .grad attribute of a Tensor that is not a leaf")
def test_parameters_that_the_program_computes_are_not_asked_for_their_gradients() -> None:
    torch.manual_seed(0)
    model = Wide()
    session = arm(model, LocalAgent(), first="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(8):
        optimizer.zero_grad()
        halved = {name: p / 2 for name, p in model.named_parameters()}
        torch.func.functional_call(model, halved, (torch.randn(64, 32),)).square().mean().backward()
        optimizer.step()

    assert not session.job.broken


def test_a_step_captured_under_a_plan_is_the_one_captured_without(expected: Any) -> None:
    graphs = []
    for first in ("plain", "auto"):
        agent, model = LocalAgent(again=0.6), made()
        arm(model, agent, first=first, warmup=3)
        train(model, 6)
        graphs.append(agent.graphs[-1])
        remove_all()

    plain, planned = graphs
    assert planned["structure"] == plain["structure"]
    for key in ("static_bytes", "measured_peak_bytes", "required"):
        assert planned[key] == plain[key], key
    assert planned["storages"] == plain["storages"]
    measured = ("time_ns", "again_ns", "workspace_bytes")
    for one, other in zip(planned["ops"], plain["ops"], strict=True):
        assert {**one, **dict.fromkeys(measured, 0)} == {**other, **dict.fromkeys(measured, 0)}
        assert abs(one["workspace_bytes"] - other["workspace_bytes"]) <= 64


def test_a_step_made_from_shapes_is_the_one_that_is_captured() -> None:
    agent, model = LocalAgent(), made()
    arm(model, agent, first="auto")

    train(model, 6)

    shapes, captured = agent.graphs
    forward = [op["name"] for op in captured["ops"] if op["phase"] == "PHASE_FORWARD"]
    assert [op["name"] for op in shapes["ops"]][: len(forward) - 3] == forward[:-3]  # but the loss
    # The optimizer's state, which the first step makes, and the batch, which this loop lets go.
    assert shapes["static_bytes"] == captured["static_bytes"] + 256 * 32 * 4
    off = shapes["measured_peak_bytes"] / captured["measured_peak_bytes"]
    assert 0.95 < off < 1.1  # the loss is another one, and the output may be held


def test_a_share_of_the_step_made_from_shapes_is_that_of_the_captured_one() -> None:
    agent, model = LocalAgent(), made()
    arm(model, agent, first="auto", budget="0.5x")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    for _ in range(6):
        optimizer.zero_grad()
        classes = torch.zeros(256, dtype=torch.int64)
        torch.nn.functional.cross_entropy(model(torch.randn(256, 32)), classes).backward()
        optimizer.step()

    static, peak = (agent.graphs[-1][key] for key in ("static_bytes", "measured_peak_bytes"))
    # The budget in bytes, of a program that lets go of its batch as this one does: 32 kB.
    assert int(agent.budgets[0]) == pytest.approx(static + (peak - static) // 2, abs=64)


@pytest.mark.parametrize(("batches", "to_none"), [(3, True), (3, False), (1, False)])
def test_steps_that_add_to_gradients_are_planned_as_such_from_the_second_one_on(
    batches: int, to_none: bool
) -> None:
    plain, planned, agent = made(), made(), LocalAgent()
    session = arm(planned, agent, first="auto")

    losses = [adding(model, 8, batches, to_none) for model in (plain, planned)]

    assert losses[0] == losses[1]
    assert session.job.record.verdict().over_budget_steps == 0
    shapes, adds, captured = agent.graphs
    assert [g["flavour"] for g in agent.graphs] == ["eager-shapes"] * 2 + ["eager-dispatch"]
    gradients = sum(p.nbytes for p in planned.parameters())
    assert adds["static_bytes"] - shapes["static_bytes"] == pytest.approx(gradients, rel=0.1)
    assert 0.98 < adds["measured_peak_bytes"] / captured["measured_peak_bytes"] < 1.05


def adding(model: nn.Module, steps: int, batches: int, to_none: bool) -> list[str]:
    """Trains with gradients of several micro-batches, or with some that are there before them;
    returns the losses and the weights."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    torch.manual_seed(3)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        for _ in range(batches):
            loss = model(torch.randn(32, 32)).square().mean()
            loss.backward()
            seen.append(loss.item().hex())
        optimizer.step()
    return seen + [p.detach().double().sum().item().hex() for p in model.parameters()]


@pytest.mark.mostly_long(6)
@pytest.mark.parametrize("seed", range(20))
def test_shapes_alone_give_the_ops_of_the_forward(seed: int) -> None:
    model, x = RandomNet(seed), torch.randn(6, WIDTH)

    shapes = sketched(model, (x,), {}, 0).graph
    captured = capture_step(model, lambda: sum(o.square().mean() for o in model(x)).backward())  # type: ignore[union-attr]

    def forward(graph: CapturedGraph) -> list[tuple[str, str]]:
        return [(op.name, op.kind.name) for op in graph.step.ops if op.in_region]

    assert forward(shapes) == forward(captured)
    assert len(shapes.step.slots) == len(captured.step.slots)
    assert [s.shape for s in shapes.step.slots] == [s.shape for s in captured.step.slots]


@pytest.mark.mostly_long(4)
@pytest.mark.parametrize("seed", range(12))
def test_shapes_that_lack_an_op_change_no_bit(
    seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, mark = random.Random(seed), Capture._mark_echo
    lacks = rng.randrange(10, 60)

    def marked(capture: Capture, op: Any) -> None:
        mark(capture, op)
        op.echo |= op.in_region and len(capture._ops) == lacks

    def gradients(how: Any) -> list[Tensor]:
        torch.manual_seed(seed)
        model = RandomNet(seed)
        how(model)
        model(torch.randn(6, WIDTH))[0].square().mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    expected = gradients(lambda model: None)
    monkeypatch.setattr(Capture, "_mark_echo", marked)
    found = gradients(lambda model: arm(model, LocalAgent(seed=seed), first="auto"))

    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("optimizer", "count"), [(torch.optim.AdamW, 2), (torch.optim.SGD, 0)])
def test_what_an_optimizer_will_keep_is_known_before_it_steps(optimizer: Any, count: int) -> None:
    model = made()
    made_one = optimizer(model.parameters(), lr=0.1)

    state_bytes, _ = needs_of(optimizers_of(model))

    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    made_one.step()
    state = [v for values in made_one.state.values() for v in values.values() if v is not None]
    assert state_bytes == sum(v.nbytes for v in state)
    assert state_bytes >= count * sum(p.nbytes for p in parameters)
    assert needs_of([made_one])[0] == 0  # it has its state


def test_what_a_forward_does_beside_the_model_is_done_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted = {"calls": 0}
    seen: list[Tensor] = []

    class Talks(Wide):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            global CALLS
            CALLS += 1
            counted["calls"] += 1
            Talks.calls += 1
            seen.append(x.detach())
            cached(len(x))
            print("forward")
            return super().forward(x)

    @functools.lru_cache
    def cached(size: int) -> Tensor:
        return torch.ones(size)

    global CALLS
    CALLS = 0
    torch.manual_seed(0)
    model = Talks()
    session = arm(model, first="auto", verify_every=0)

    train(model, 1)

    assert session.job.measured.planned_steps == 1
    assert session.job.measured.mismatched_steps == 0
    assert CALLS == counted["calls"] == Talks.calls == model.forwards == len(seen) == 1
    assert {type(x) for x in seen} == {Tensor} == {type(cached(256))}
    assert capsys.readouterr().out.count("forward") == 1


class Hooked(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.norm.register_forward_hook(lambda *_: None)


class Holds(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.file = open(os.devnull)  # noqa: SIM115


class Scripted(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.inner[2] = torch.jit.script(self.inner[2])


def fuses() -> Wide:
    """A model with a function of TorchScript, another one each time, as its runs are counted."""

    def gelu(bias: Tensor, x: Tensor) -> Tensor:
        x = bias + x
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    fused = torch.jit.script(gelu)

    class Fuses(Wide):
        def forward(self, x: Tensor) -> Tensor:
            for linear in self.inner:
                x = fused(linear.bias, super().forward(x))
            return x

    return Fuses(3)


@pytest.mark.parametrize("kind", [Scripted, fuses])
def test_the_copy_is_no_run_after_which_torchscript_compiles_anew(kind: Any) -> None:
    def trained(armed: bool) -> list[float]:
        torch.manual_seed(0)
        model = kind()
        if armed:
            arm(model, LocalAgent(), first="auto")
        return train(model, 14)

    expected = trained(False)

    assert trained(True) == expected


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Scripted, "inner.2 is compiled with TorchScript, not to be copied"),
        (Hooked, "hooks of the program would be called once more"),
        (Holds, "holds a TextIOWrapper, not to be copied"),
    ],
)
def test_a_model_that_a_copy_would_disturb_is_not_copied(
    kind: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = kind()
    session = arm(model, first="auto", verify_every=0)

    train(model, 4)

    assert session.job.measured.plain_steps == 2
    assert f"the first steps run without a plan: {why}" in capsys.readouterr().err.replace(
        "file ", ""
    )


class Sparse(Wide):
    """Multiplies by a sparse matrix when it is told to."""

    sparse = False

    def forward(self, x: Tensor) -> Tensor:
        if self.sparse:
            x = torch.sparse.mm(torch.eye(len(x)).to_sparse(), x)
        return super().forward(x)


def test_saved_tensors_without_a_storage_come_back_in_a_step_captured_under_a_plan() -> None:
    def gradients(how: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model, found = Sparse(), []
        how(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            model.sparse = step >= 3  # from the captured step on
            optimizer.zero_grad()
            model(torch.randn(64, 32)).square().mean().backward()
            optimizer.step()
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return found

    expected = gradients(lambda model: None)
    found = gradients(lambda model: arm(model, LocalAgent(), first="auto"))

    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("budget", [None, "0.5x"])
def test_an_input_without_shapes_is_said_and_disturbs_nothing(
    budget: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(x, self.weight).sin()

    model = Product()
    session = arm(model, budget=budget, first="auto", verify_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for _ in range(3):
        optimizer.zero_grad()
        model(torch.eye(4).to_sparse()).square().mean().backward()
        optimizer.step()

    assert not session.job.broken
    said = capsys.readouterr().err
    assert said.count("without a plan: a tensor that is not strided") == (budget is not None)


def test_what_is_alive_beside_the_step_is_held_back_from_the_second_one_on() -> None:
    agent, model = LocalAgent(), made()
    session = arm(model, agent, first="auto", warmup=4)
    held: list[Tensor] = []

    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(256, 32)).square().mean().backward()
        optimizer.step()
        held.append(torch.empty(1 << 20))

    assert len(agent.graphs) == 3  # one more request after each step
    first, second, third = agent.reserves
    assert second - first == pytest.approx(4 << 20, rel=0.05)
    assert third - second == pytest.approx(4 << 20, rel=0.05)
    assert session.job.measured.plain_steps == 0


def test_the_first_steps_are_plain_where_they_fit(
    expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, model = LocalAgent(share=0.0), made()  # which discards nothing
    session = arm(model, agent, first="auto")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.measured.plain_steps == 2
    assert "first steps" not in capsys.readouterr().err


def test_on_the_host_the_first_steps_peak_lower_than_plain_ones() -> None:
    model = made()
    plain = arm(model, budget=None)
    train(model, 3)
    base = plain.job.measured.base_peak_bytes
    plain.remove()
    agent, model = LocalAgent(), made()
    session = arm(model, agent, first="host")

    train(model, 2)

    # Activations are 18 of 32 kB and masks, of which the backward needs one op's at a time.
    least = agent.graphs[0]["static_bytes"]
    peaks = [s["peak_bytes"] for s in agent.steps]
    assert max(peaks) - least < 0.5 * (base - least)
    assert session.job.host is not None
    assert session.job.host.peak_bytes > 0.7 * (base - least)


class Chooses(nn.Module):
    """A model whose shapes alone do not determine what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return x.sin() if x.sum().item() > 0 else x.cos()


@pytest.mark.parametrize(
    ("apart", "way"),
    [(True, "no plan from shapes:"), (False, "the first steps run without a plan:")],
)
def test_where_shapes_are_not_enough_saved_tensors_go_to_the_host_if_that_is_elsewhere(
    apart: bool,
    way: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup, "room_on", lambda _: Room(1 << 30, "plenty", apart))
    torch.manual_seed(0)
    plain = Chooses()
    expected = train(plain, 4)
    torch.manual_seed(0)
    model = Chooses()
    session = arm(model, first="auto", verify_every=0)

    assert train(model, 4) == expected
    assert (session.job.host is not None) == apart
    assert f"{way} shapes alone do not determine the step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("capture_once", "an internal error in Reprise (ValueError: injected)"),
        ("faked", "the model has no copy without memory (ValueError: injected)"),
    ],
)
def test_an_internal_error_in_the_plan_from_shapes_is_not_blamed_on_the_model(
    place: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("injected")

    monkeypatch.setattr(sketch, place, fails)
    torch.manual_seed(0)
    expected = train(Wide(), 1)
    torch.manual_seed(0)
    model = Wide()
    arm(model, first="auto", verify_every=0)

    assert train(model, 1) == expected
    assert f"the first steps run without a plan: {said}" in capsys.readouterr().err


class Unlike(Wide):
    """Takes another path on real tensors than on fake ones."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x if type(x) is Tensor else x.relu()


def test_a_step_that_differs_from_its_shapes_goes_on_and_the_next_one_is_captured() -> None:
    torch.manual_seed(0)
    expected = train(Unlike(), 6)
    torch.manual_seed(0)
    model = Unlike()
    session = arm(model, first="auto", verify_every=0)

    losses = train(model, 1)

    assert session.job.measured.mismatched_steps == 1
    remove_all()
    torch.manual_seed(0)
    model = Unlike()
    arm(model, first="auto", verify_every=0)
    losses = train(model, 6)
    assert losses == expected


@pytest.mark.train
def test_after_a_refused_budget_a_job_that_does_not_fit_keeps_saved_tensors_on_the_host(
    expected: Any,
) -> None:
    agent, model = LocalAgent(), made()
    agent.refuse = "no plan fits"
    session = arm(model, agent, first="host")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLAIN
    assert session.job.measured.plain_steps == 0


class Unsure(LocalAgent):
    """No plan is found for a step that was captured, and no second one from shapes."""

    def __init__(self, lack_bytes: int = 0) -> None:
        super().__init__()
        self.lack_bytes = lack_bytes  # of the budget, that what steps peak at is larger

    def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
        if graph_id > 1:
            return PlanReply("refused", why="No plan found yet.", smallest_budget=1 << 20)
        reply = super().poll_plan(graph_id, have)
        if reply.plan is not None and self.lack_bytes:
            within = reply.plan.peak_bytes - self.lack_bytes
            return PlanReply("plan", plan=replace(reply.plan, budget_bytes=within))
        return reply


@pytest.mark.parametrize("keeps_budget", [True, False])
def test_the_plan_from_shapes_stays_where_its_steps_keep_the_budget_and_no_other_is_found(
    keeps_budget: bool, expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, model = Unsure(0 if keeps_budget else 200_000), made()
    session = arm(model, agent, first="auto")

    losses = train(model, 20)

    assert same(model, losses, expected)
    measured, verdict = session.job.measured, session.job.record.verdict()
    stays = "No plan found yet. The plan from shapes stays: its steps peaked at"
    assert capsys.readouterr().err.count(stays) == keeps_budget
    if keeps_budget:
        assert session.job.stage is Stage.PLANNED
        assert measured.plain_steps == verdict.over_budget_steps == verdict.checks_differing == 0
        assert measured.mismatched_steps == 0
        assert all(step["flags"] & abi.STEP_PLANNED for step in agent.steps)
    else:
        assert session.job.stage is Stage.PLAIN
        assert measured.plain_steps > 0


class Strict(LocalAgent):
    """No plan within what the program asks for: the one that needs least is within `least` bytes,
    and it is said that `smallest` may do."""

    def __init__(self, least: int = 0, smallest: int = 600_000) -> None:
        super().__init__()
        self.least = least
        self.smallest = smallest
        self.asked: list[str] = []
        self.held_back: list[int] = []

    def submit_graph(
        self, text: bytes, budget: str, capabilities: str, static_bytes: int, **more: int
    ) -> int:
        self.asked.append(budget)
        self.held_back.append(more["reserve_bytes"])
        return super().submit_graph(text, budget, capabilities, static_bytes)

    def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
        asked = self.asked[graph_id - 1]
        if asked != "least":
            why = f"Nothing fits in {asked}."
            return PlanReply("refused", why=why, smallest_budget=self.smallest)
        reply = super().poll_plan(graph_id, have)
        if reply.plan is not None and self.least:
            least = replace(reply.plan, budget_bytes=self.least, peak_bytes=self.least)
            return PlanReply("plan", plan=least)
        return reply


def test_if_neither_a_plan_nor_the_plain_step_fits_the_smallest_plan_is_used(
    expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, model = Strict(), made()
    session = arm(model, agent, first="host", budget="300kB")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert agent.asked[1:] == ["least"]
    assert agent.held_back == [0, 6_000]  # 1 % of it, for what a check takes
    assert session.job.stage is Stage.PLANNED
    assert session.job.record.verdict().checks_differing == 0
    said = capsys.readouterr().err
    assert (
        "Nothing fits in 300kB. The job does not fit without a plan either: requesting the plan"
        in said
    )


@pytest.mark.train
def test_if_the_smallest_plan_does_not_fit_the_log_says_what_would(
    expected: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "room_on", lambda _: Room(1000, "the test's memory", True))
    held = alive_bytes(CPU)  # by other tests of this process: the job counts it as its own
    allowed, smallest = held + 300_000, held + 600_000
    agent, model = Strict(1 << 40, smallest), made()
    session = arm(model, agent, first="host", budget=str(allowed))

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLAIN
    assert agent.asked == [str(allowed)]
    assert session.job.measured.plain_steps == 0  # none without the host's help
    static = agent.graphs[0]["static_bytes"]
    fits = int(256 * (allowed - static) / (smallest - static))
    assert 0 < fits < 256
    said = f"Nothing fits in {allowed}. Saved tensors stay in host memory, and steps are slow. "
    said += f"What would fit: a budget of {format_bytes(smallest)} or more, or a batch of about "
    said += f"{fits} instead of 256"
    assert capsys.readouterr().err.count(said) == 1


@pytest.mark.train
def test_a_smallest_plan_that_turns_out_too_large_is_not_used(
    expected: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "room_on", lambda _: Room(1 << 30, "the test's memory", True))
    agent, model = Strict(1 << 40), made()
    session = arm(model, agent, first="host", budget="300kB")

    losses = train(model, 20)

    assert same(model, losses, expected)
    assert session.job.stage is Stage.PLAIN
    assert agent.asked == ["300kB", "least"]
    said = "The plan that needs least takes 1.0 TiB. Saved tensors stay in host memory"
    assert capsys.readouterr().err.count(said) == 1
    assert [state for _, state, _ in agent.states].count(abi.PLAN_REFUSED) == 1


def test_room_is_what_the_tightest_limit_leaves() -> None:
    text = (
        "import resource, torch; from reprise.torch.meter.room import room_on\n"
        "used = int(next(l for l in open('/proc/self/status') if 'VmData' in l).split()[1]) << 10\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))\n"
        "room = room_on(torch.device('cpu')); print(room.bytes, room.what, room.host_apart)\n"
    )
    source = str(Path(startup.__file__).parents[3])
    out = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()

    assert 0.9 * (64 << 20) <= int(out[0]) <= 64 << 20
    assert out[1:] == ["RLIMIT_DATA", "True"]
    room = room_on(CPU)
    assert room is not None
    assert room.bytes > 0
