# SPDX-License-Identifier: Apache-2.0
"""What the program writes while its backward runs, and the captured step did not: hooks, backwards
of its own functions, one backward after another. Plain training does not mind where autograd has
not saved the tensor, so a planned step must not either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import referee
import torch
from jobs import Job, Tape, captured, compile_plan, different, plain_step, start_meter, sum_of
from nets import WIDTH, Leaky, job
from torch import Tensor, nn

from reprise.torch.internals.watch import close_watches
from reprise.torch.tape.tape_run import Run


def tape_of(made: Job) -> Tape:
    """Returns a tape under a plan that discards as much as it may."""
    plain_step(made, 0)
    graph = captured(made, start_meter())
    return Tape(compile_plan(graph, referee.random_plan(graph.message(), 0, 1.0, 0.3)))


def in_a_function(write: Callable[[], Any], loss: Tensor) -> Tensor:
    """Writes in the backward of a custom function."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            write()
            return grad

    return Writing.apply(loss)  # type: ignore[no-any-return]


def in_a_hook(write: Callable[[], Any], loss: Tensor) -> Tensor:
    loss.register_hook(lambda _: write() and None)
    return loss


def in_a_second_backward(write: Callable[[], Any], loss: Tensor) -> Tensor:
    """Writes in a backward that is nested in another."""

    def hook(_: Tensor) -> None:
        with torch.enable_grad():
            x = torch.ones(2, requires_grad=True)
            in_a_function(write, x.square().sum()).backward()

    loss.register_hook(hook)
    return loss


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda y: y.add_(1.0),
    "through data": lambda y: y.data.mul_(3.0),
    "a part of it": lambda y: y[0].zero_(),
    "an element": lambda y: y.__setitem__(0, 3.0),
    "as out": lambda y: torch.add(y, 1.0, out=y),
    "by copying": lambda y: y.copy_(torch.randn_like(y)),
    "one of many": lambda y: torch._foreach_add_([torch.zeros(2), y], 1.0),
    "by a function of Python's": lambda y: (
        nn.functional.relu(y - 2, inplace=True) + nn.init.ones_(y)
    ),
    "by an overload": lambda y: torch.ops.aten.add_.Tensor(y, y),
}


def same_as_plain(made: Job, tape: Tape, loss_of: Callable[[Any], Tensor]) -> Run:
    """Checks that a planned step has the gradients of a plain one, and leaves nothing behind."""
    torch.manual_seed(1)
    made.begin(1)
    loss_of(made.model(*made.inputs)).backward()
    expected = made.state()
    made.begin(1)
    run = tape.begin()
    with tape.region():
        out = made.model(*made.inputs)

    loss_of(out).backward()

    assert different(expected, made.state()) == []
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
    return run


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("where", [in_a_hook, in_a_function, in_a_second_backward])
def test_a_write_during_the_backward_that_the_capture_did_not_see_changes_nothing(
    how: str, where: Any
) -> None:
    made = job(Leaky())
    tape = tape_of(made)

    def loss_of(out: Any) -> Tensor:
        def write() -> None:
            with torch.no_grad():
                WRITES[how](made.model.kept)  # type: ignore[arg-type]

        return where(write, sum_of(out))  # type: ignore[no-any-return]

    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    run = same_as_plain(made, tape, loss_of)

    assert run.counts.replayed > 0
    assert (run.counts.mismatches, run.counts.on_demand) == (0, 0)
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]


def test_a_write_between_two_backwards_of_a_graph_changes_nothing() -> None:
    made = job(Leaky())
    tape = tape_of(made)

    def twice(out: Any) -> Tensor:
        loss = sum_of(out)
        loss.backward(retain_graph=True)
        with torch.no_grad():
            made.model.kept.add_(1.0)  # type: ignore[union-attr, operator]
        return loss

    same_as_plain(made, tape, twice)


def test_a_write_after_another_models_forward_changes_nothing() -> None:
    first, second = job(Leaky()), job(Leaky())
    tapes = tape_of(first), tape_of(second)

    def step(planned: bool) -> dict[str, Tensor]:
        loss = torch.zeros(())
        for made, tape in zip((first, second), tapes, strict=True):
            made.begin(1)
            if planned:
                tape.begin()
                with tape.region():
                    out = made.model(*made.inputs)
            else:
                out = made.model(*made.inputs)
            loss = loss + sum_of(out)
        with torch.no_grad():
            first.model.kept.add_(1.0)  # type: ignore[union-attr, operator]
        loss.backward()
        return first.state()

    assert different(step(planned=False), step(planned=True)) == []


def test_an_optimizer_that_steps_inside_the_backward_changes_nothing() -> None:
    made = job(nn.Sequential(Leaky(), nn.Linear(WIDTH, WIDTH), Leaky()))
    tape = tape_of(made)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}

    def step(planned: bool) -> dict[str, Tensor]:
        with torch.no_grad():
            for name, parameter in made.model.named_parameters():
                parameter.copy_(before[name])
        made.begin(1)
        handles = []
        for parameter in made.model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            handles.append(
                parameter.register_post_accumulate_grad_hook(
                    lambda _, optimizer=optimizer: optimizer.step()
                )
            )
        if planned:
            tape.begin()
            with tape.region():
                out = made.model(*made.inputs)
        else:
            out = made.model(*made.inputs)
        sum_of(out).backward()
        for handle in handles:
            handle.remove()
        return {**made.state(), **{f"new {n}": p for n, p in made.model.state_dict().items()}}

    expected = {n: t.clone() for n, t in step(planned=False).items()}
    assert different(expected, step(planned=True)) == []


def test_a_backward_that_fails_leaves_no_mode_behind() -> None:
    made = job(Leaky())
    tape = tape_of(made)
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    loss = sum_of(out)

    def fails(_: Tensor) -> None:
        raise ValueError("a hook failed")

    loss.register_hook(fails)
    with pytest.raises(ValueError, match="a hook failed"):
        loss.backward()

    close_watches()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0


def test_replays_are_not_watched_for_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "reprise.torch.internals.watch._may_write", lambda func, _: seen.append(func)
    )
    made = job(Leaky())
    tape = tape_of(made)
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    loss = sum_of(out)
    loss.register_hook(torch.neg)

    loss.backward()

    assert tape.run.counts.replayed > 0
    assert seen == [torch.neg]
