# SPDX-License-Identifier: Apache-2.0
"""The program differs from the captured step: the gradients are still its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import referee
import torch
from arming import arm, remove_all
from jobs import (
    Tape,
    compile_plan,
    different,
    plain_step,
    planned_step,
    start_meter,
    sum_of,
)
from local_agent import LocalAgent
from nets import WIDTH, Chain, ConvNet, Leaky, RandomNet, job
from tapes import plan, prepared, tape_for
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.torch.internals import watch

pytestmark = pytest.mark.usefixtures("half")  # with and without the native engine of the tape


class Switching(nn.Module):
    """Takes another path when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.way = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).sin()
        z = y.cos().exp()
        if self.way == 1:
            z = z.tanh()
        if self.way == 2:  # the same number of ops, in place on what a record reads
            y.mul_(2.0)
            z = z * y
        if self.way == 3:
            return z
        return self.second(z).sigmoid().square()


@pytest.mark.parametrize("way", [1, 2, 3])
def test_a_different_path_through_the_model_keeps_everything_and_is_counted(way: int) -> None:
    made = job(Switching())
    graph = prepared(made)
    schedule = plan(graph)
    made.model.way = way  # type: ignore[assignment]
    if way == 2:
        made.model.first.weight.requires_grad_(False)  # cos saved y: autograd itself would refuse
        made.model.first.bias.requires_grad_(False)
    expected = plain_step(made, 2, step=False)

    found, counts, _ = planned_step(made, graph, schedule, 2, step=False)

    assert different(expected, found) == []
    assert counts.mismatches == 1
    assert "captured" in counts.first_mismatch or "ended" in counts.first_mismatch


class Frozen(nn.Module):
    """A batch norm that reads its statistics, unless told to compute them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x).sin())).square()  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", ["auto", "plain"])
def test_statistics_that_a_later_forward_updates_are_not_those_of_a_replay(first: str) -> None:
    def gradients(how: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        model = Frozen()
        how(model)
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(8):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model.norm.eval()
            loss = model(torch.randn(16, WIDTH)).mean()
            if step in (0, 6):  # which no plan foresees
                model.norm.train()
                loss = loss + model(torch.randn(16, WIDTH)).mean()
            loss.backward()
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
        return found

    expected = gradients(lambda model: None)
    found = gradients(lambda model: arm(model, LocalAgent(again=0.6), first=first))
    remove_all()

    assert all(map(torch.equal, found, expected))


def test_another_batch_size_runs_under_the_same_plan() -> None:
    made = job(RandomNet(2))
    graph = prepared(made)
    made.inputs = (torch.randn(3, WIDTH),)
    state = copy.deepcopy(made.model.state_dict())
    expected = plain_step(made, 2, step=False)
    made.model.load_state_dict(state)

    found, counts, _ = planned_step(made, graph, plan(graph), 2, step=False)

    assert different(expected, found) == []
    assert counts.mismatches == 0


def test_a_second_backward_through_a_retained_graph_is_equal() -> None:
    made = job(RandomNet(4))
    graph = prepared(made)
    state = copy.deepcopy(made.model.state_dict())

    def twice() -> dict[str, Tensor]:
        loss = made.loss(made.model(*made.inputs))
        loss.backward(retain_graph=True)
        loss.backward()
        return made.state()

    made.begin(1)
    expected = twice()
    made.model.load_state_dict(state)
    made.begin(1)
    tape = tape_for(graph)
    run = tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    loss = made.loss(out)
    loss.backward(retain_graph=True)
    loss.backward()

    assert different(expected, made.state()) == []
    assert run.counts.on_demand > 0


def test_gradients_of_gradients_are_equal() -> None:
    made = job(Chain(8))
    graph = prepared(made)
    parameter = made.model.scale

    def double(out: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(sum_of(out), parameter, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), parameter)
        return second

    expected = double(made.model(*made.inputs))
    tape = tape_for(graph)
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)

    assert torch.equal(expected, double(out))


def test_a_backward_in_another_order_gives_equal_gradients() -> None:
    made = job(RandomNet(6))
    graph = prepared(made)
    state = copy.deepcopy(made.model.state_dict())

    def backward(out: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        out[1].sum().backward(retain_graph=True)
        out[0].sum().backward()
        return made.state()

    made.begin(1)
    expected = backward(made.model(*made.inputs))
    made.model.load_state_dict(state)
    made.begin(1)
    tape = tape_for(graph)
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)

    assert different(expected, backward(out)) == []


class Counting(TorchDispatchMode):
    """A dispatch mode of the program around its loss."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda y: y.add_(1.0),
    "through data": lambda y: y.data.mul_(3.0),
    "a part of it": lambda y: y[0].zero_(),
    "as out": lambda y: torch.add(y, 1.0, out=y),
    "by copying": lambda y: y.copy_(torch.randn_like(y)),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("inside_a_mode", [False, True])
def test_a_write_after_the_forward_that_the_capture_did_not_see_changes_nothing(
    how: str, inside_a_mode: bool
) -> None:
    made = job(Leaky())
    graph = prepared(made)
    expected = plain_step(made, 1, step=False)
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    tape = tape_for(graph)
    made.begin(1)
    run = tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    with torch.no_grad(), Counting() if inside_a_mode else nullcontext():
        WRITES[how](made.model.kept)  # type: ignore[arg-type]

    made.loss(out).backward()

    assert different(expected, made.state()) == []
    assert run.counts.replayed > 0
    assert (run.counts.mismatches, run.counts.on_demand) == (0, 0)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]


def test_a_forward_whose_backward_never_comes_leaves_no_hook_behind() -> None:
    made = job(Leaky())
    graph = prepared(made)
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    tape = tape_for(graph)
    run = tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    assert len(watch._open) == 1
    del out

    run.finish()

    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]


def test_a_saved_tensor_that_was_written_is_refused_as_autograd_does() -> None:
    made = job(Chain(3))
    graph = prepared(made)
    tape = Tape(compile_plan(graph, referee.base_schedule(graph.message())))
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    loss = out.exp()
    with torch.no_grad():
        made.model.scale.add_(1.0)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


def test_a_forward_that_fails_and_is_tried_again_runs_planned() -> None:
    made = job(Chain(6))
    graph = prepared(made)
    expected = plain_step(made, 0, step=False)
    tape = tape_for(graph)
    run = tape.begin()
    original = made.model.forward

    def failing(x: Tensor) -> Tensor:
        original(x)
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"), tape.region():
        failing(*made.inputs)
    made.begin(0)
    with tape.region():
        out = made.model(*made.inputs)
    made.loss(out).backward()

    assert different(expected, made.state()) == []
    assert run.counts.mismatches == 0


def test_accumulated_gradients_are_equal() -> None:
    made = job(ConvNet(), 4, 3, 8, 8)
    plain_step(made, 0)
    second = torch.randn(4, 3, 8, 8)
    from jobs import Capture, alive_tensors, build

    def step(around: Any) -> dict[str, Tensor]:
        made.begin(1)
        for batch in (made.inputs[0], second):
            with around() as pin:
                out = made.model(batch)
                if pin is not None:
                    pin(out)
            made.loss(out).backward()
        return made.state()

    meter = start_meter()
    state = copy.deepcopy(made.model.state_dict())
    capture = Capture(made.model, meter)
    made.begin(1)
    capture.begin(alive_tensors(torch.device("cpu")), {})
    expected = step(capture.region)
    graph = build(capture.finish(), name="two", measured_peak_bytes=0, measured_step_ns=0)
    made.model.load_state_dict(state)
    tape = tape_for(graph)
    run = tape.begin()

    found = step(tape.region)

    assert different(expected, found) == []
    assert run.counts.mismatches == 0
    assert run.counts.replayed > 0


def test_autocast_is_off_while_calls_are_replayed() -> None:
    made = job(Switching())

    class Cast(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inner(x).float()

    made = job(Cast(made.model))
    graph = prepared(made)
    expected = plain_step(made, 1, step=False)
    tape = tape_for(graph)
    tape.begin()
    made.begin(1)
    with tape.region():
        out = made.model(*made.inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made.loss(out).backward()

    assert different(expected, made.state()) == []


@pytest.mark.long
@pytest.mark.train
def test_a_chain_of_thousands_of_calls_does_not_recurse() -> None:
    made = job(Chain(3000), 4)
    graph = prepared(made)
    expected = plain_step(made, 1, step=False)
    tape = tape_for(graph, again=0.0)
    run = tape.begin()
    made.begin(1)
    with tape.region():
        out = made.model(*made.inputs)
    loss = made.loss(out)
    loss.backward(retain_graph=True)  # on demand: everything from the leaves

    assert different(expected, made.state()) == []
    assert run.counts.on_demand > 2000
