# SPDX-License-Identifier: Apache-2.0
"""Ops are timed in one plain step of the warm-up, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from nets import ConvNet
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.torch.capture.captured import CapturedOp, CapturedStep
from reprise.torch.ladder.rung import Key
from reprise.torch.planning.op_times import OpTimes
from reprise.torch.policy.state import Stage
from reprise.torch.session.session import Session
from reprise.torch.tape.tape import native_engine

FAKE = torch._C._parse_dispatch_key("Fake")


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


def train(model: nn.Module, steps: int, rows: int = 4) -> list[str]:
    """Trains; returns the losses to the last bit."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(rows, 3, 8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def net() -> ConvNet:
    torch.manual_seed(1)
    return ConvNet()


def captured(session: Session) -> CapturedStep:
    return session.job.plans.ladder.rungs[0].graph.step


def test_every_op_of_the_forward_is_timed_and_training_stays_as_it_was() -> None:
    expected = train(net(), 8)
    model = net()
    session = arm(model)

    assert train(model, 8) == expected

    assert session.job.stage is Stage.PLANNED
    names = Counter(op.name for op in captured(session).ops if op.in_region)
    known = session.parts.op_times._known[session.job.step.key]
    assert {name: len(known.get(name, [])) for name in names} == dict(names)
    assert all(took >= 0 for times in known.values() for took in times)


def test_every_op_of_a_forward_under_a_plan_from_shapes_is_timed() -> None:
    expected = train(net(), 8, rows=32)
    model = net()
    session = arm(model, first="auto")

    assert train(model, 8, rows=32) == expected

    assert session.job.measured.plain_steps == 0
    names = Counter(op.name for op in captured(session).ops if op.in_region)
    known = session.parts.op_times._known[session.job.step.key]
    assert {name: len(known.get(name, [])) for name in names} == dict(names)
    scale = captured(session).stretched
    for op in captured(session).ops:
        if op.in_region:
            assert op.time_ns <= int(max(known[op.name]) * scale)


def test_the_same_ops_are_compared_under_the_plan_and_their_times_stay_as_they_were() -> None:
    model = net()
    session = arm(model)
    reported: list[tuple[int, int]] = []
    session.job.record.same_ops = lambda *times: reported.append(times)  # type: ignore[method-assign]
    train(model, 4)
    known = {
        name: [*times]
        for name, times in session.parts.op_times._known[session.job.step.key].items()
    }

    train(model, 8)

    assert session.parts.op_times._known == {session.job.step.key: known}
    then = sum(map(sum, known.values()))
    assert reported[:3] == [(0, 0), (0, 0), reported[2]]  # of three steps the least
    assert all(then_ns == then and now_ns > 0 for then_ns, now_ns in reported[2:])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"warmup": 1}, "the first step pays for what is set up once"),
        ({"budget": None}, "nothing is planned"),
    ],
)
def test_ops_are_not_timed_if_it_is_useless_or_impossible(
    options: dict[str, Any], why: str
) -> None:
    model = net()
    session = arm(model, **options)

    train(model, 6)

    assert not session.parts.op_times._known, why


def times_of(session: Session, **known: list[int]) -> OpTimes:
    times = OpTimes(session)
    times._known = {session.job.step.key: {f"aten.{n}.default": list(t) for n, t in known.items()}}
    return times


def convolutions() -> tuple[Session, CapturedStep, list[CapturedOp]]:
    model = net()
    session = arm(model)
    train(model, 3)
    step = captured(session)
    step.stretched = 1.0
    ops = [op for op in step.ops if op.in_region and op.name == "aten.convolution.default"]
    assert len(ops) > 1
    for op in ops:
        op.time_ns, op.again_ns = 1000, 50
    return session, step, ops


def test_op_times_are_those_of_a_plain_step_scaled_to_the_speed_of_the_machine() -> None:
    session, step, ops = convolutions()
    step.stretched = 2.0
    expected = range(100, 100 + len(ops))

    times_of(session, convolution=[*expected]).apply(step, session.job.step.key)

    assert [op.time_ns for op in ops] == [2 * ns for ns in expected]
    assert [op.again_ns for op in ops] == [50 * 2 * ns // 1000 for ns in expected]


def test_times_of_new_shapes_are_scaled_by_the_total_of_ops_with_their_name() -> None:
    session, step, ops = convolutions()
    times = times_of(session, convolution=[200, 400] + [300] * (len(ops) - 2))
    times.apply(step, session.job.step.key)
    for number, op in enumerate(ops):
        op.time_ns = 1000 * (number + 1)

    times.apply(step, Key((), ()))

    assert [op.time_ns for op in ops] == [300 * (n + 1) for n in range(len(ops))]


def test_an_op_called_more_often_than_in_the_timed_step_keeps_its_captured_time() -> None:
    session, step, ops = convolutions()

    times_of(session, convolution=[1]).apply(step, session.job.step.key)

    assert {op.time_ns for op in ops} == {1000}


def test_an_op_time_is_never_larger_than_in_the_capture() -> None:
    session, step, ops = convolutions()

    times_of(session, convolution=[10**12] * len(ops)).apply(step, session.job.step.key)

    assert {op.time_ns for op in ops} == {1000}


def test_the_fastest_of_several_timed_steps_counts() -> None:
    model = net()
    session = arm(model, warmup=4)
    train(model, 3)
    times, name = session.parts.op_times, "aten.convolution.default"
    count = len(times._known[session.job.step.key][name])

    for took in (7, 3, 5):
        times._now[name] = [took] * count
        assert times.spent_ns() >= 0

    assert times._known[session.job.step.key][name] == [min(3, before) for before in [3] * count]


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x)
        if self.calls == 2:
            raise ValueError("of the program")
        return out


def test_a_failed_forward_leaves_no_clock_running() -> None:
    model = Failing()
    session = arm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

    with pytest.raises(ValueError, match="of the program"):
        model(torch.ones(2, 4))

    assert not session.parts.op_times._now
    assert not session.parts.op_times._known
    assert not torch._C._dispatch_tls_is_dispatch_key_included(FAKE)
    half = native_engine()
    assert half is not None
    assert half.clocked() == []


def test_no_clock_runs_under_a_mode_of_the_program_or_twice() -> None:
    half = native_engine()
    assert half is not None

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        assert half.clock(True) is False
    assert half.clock(True) is True
    try:
        assert half.clock(True) is False
        torch.ones(3).exp()
    finally:
        timed = half.clocked()
    assert [(name, overload) for name, overload, _ in timed][-1] == ("aten::exp", "")
    torch.ones(3).exp()
    assert half.clocked() == []
