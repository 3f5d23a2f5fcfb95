# SPDX-License-Identifier: Apache-2.0
"""Memory runs out after the first step and before the first plan, as when the optimizer has made
its state; or under a plan in the program's own code, as in its loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from out_of_memory import Failing, made, run, same
from torch import nn

from reprise.torch.meter.room import Room
from reprise.torch.planning.notes import Notes
from reprise.torch.policy.state import Stage
from reprise.torch.recovery import startup
from reprise.torch.session import session as sessions

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _removed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(startup, "room_on", lambda _: None)  # not known: any step may run out
    Failing.backwards = 0
    yield
    remove_all()
    Failing.backwards = 0


def at_step(number: int, model: nn.Module, do: Any) -> Any:
    """What `run` calls at every step, with its input: at one of them, something."""
    count = [0]

    def change(_: torch.Tensor) -> None:
        count[0] += 1
        if count[0] == number:
            do()

    return change


def runs_out() -> None:
    Failing.backwards = 1


@pytest.mark.parametrize("step", [2, 3])  # 3: in which optimizer and model are captured
def test_a_later_forward_before_the_plan_runs_again_and_no_bit_changes(
    step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run(made())
    model, agent = made(), LocalAgent()
    session = arm(model, agent)
    calls: list[int] = []

    def hungry(module: nn.Module, inputs: Any) -> None:
        calls.append(1)
        if len(calls) == step:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    handle = model.last.register_forward_pre_hook(hungry)
    found = run(model, change=at_step(step + 1, model, lambda: handle.remove()))

    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.plain_steps == step - 1
    said = capsys.readouterr().err
    assert f"step {step} and the next steps keep their saved tensors in host memory" in said


def test_a_second_backward_runs_again_and_no_bit_changes() -> None:
    expected = run(made())
    model = made()
    session = arm(model, warmup=3)

    found = run(model, change=at_step(2, model, runs_out))

    assert Failing.backwards == 0
    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.plain_steps == 1


def test_a_step_that_cannot_run_again_raises_and_the_next_one_is_not_plain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = made()
    expected = run(plain, change=at_step(2, plain, runs_out))  # statistics of the failed one too
    model = made()
    session = arm(model)
    model.last.register_forward_hook(lambda m, i, o: None)  # it would run twice

    found = run(model, change=at_step(2, model, runs_out))

    assert same(found, expected)  # `run` goes on after the error
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.plain_steps == 1
    said = capsys.readouterr().err
    assert "step 3 and the next steps keep their saved tensors in host memory: memory ran" in said
    assert "out in the backward (Tried to allocate 2.00 GiB)" in said


def test_a_second_step_that_does_not_fit_is_not_tried_plainly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(made())
    room = 1 << 20
    session = arm(model := made())
    held: list[torch.Tensor] = []  # as the state that an optimizer makes in the first step

    def grows() -> None:
        held.append(torch.empty(room - 30_000, dtype=torch.uint8))

    monkeypatch.setattr(
        startup, "room_on", lambda _: Room(0 if held else room, "the test's memory", True)
    )
    found = run(model, change=at_step(2, model, grows))

    assert same(found, expected)
    assert session.job.measured.plain_steps == 1
    assert "and the test's memory has less left" in capsys.readouterr().err


def test_memory_that_malloc_keeps_does_not_send_saved_tensors_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rooms = iter([1 << 30])  # the process does not give back what its first step has freed
    monkeypatch.setattr(startup, "room_on", lambda _: Room(next(rooms, 0), "the test's", True))
    session = arm(model := made())

    run(model, steps=4)

    assert session.job.measured.plain_steps == 2
    assert session.job.host is None


def test_a_job_that_ran_out_of_memory_is_remembered_until_it_has_a_plan() -> None:
    model = made()
    arm(model)
    model.last.register_forward_hook(lambda m, i, o: None)

    run(model, steps=1, change=at_step(1, model, runs_out))

    assert Notes(model, CPU)._read().get("out_of_memory") is None  # a step was taken on the host


def test_running_out_of_memory_in_the_loss_tightens_the_next_plan_and_is_logged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, agent = made(), LocalAgent()
    asked: list[str] = []
    submit = agent.submit_graph

    def submitted(text: bytes, budget: str, *rest: Any, **more: Any) -> int:
        asked.append(budget)
        return submit(text, budget, *rest, **more)

    agent.submit_graph = submitted  # type: ignore[method-assign]
    failing = [6]

    class Loss(torch.autograd.Function):
        """Between forward and backward, as the allocator of a GPU tells of it."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            failing[0] -= 1
            if failing[0] == 0:
                sessions._ran_out(None, 20 << 20)
                raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad

    rand = torch.rand
    # What `run` calls between forward and backward.
    monkeypatch.setattr(torch, "rand", lambda *a: Loss.apply(rand(*a)))
    expected = run(made())  # statistics of the failed step too
    failing[0] = 6
    session = arm(model, agent)

    found = run(model)

    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.mismatched_steps == 0
    assert session.job.measured.planned_steps == 3  # under the tighter one
    plan = session.plan
    assert plan is not None
    assert asked[0] == "0.5x"
    assert asked[1].isdigit()
    said = capsys.readouterr().err
    assert "out of memory in the program's code beside the model (20.0 MiB were asked for)" in said
    assert "the next step runs under a tighter plan" in said
