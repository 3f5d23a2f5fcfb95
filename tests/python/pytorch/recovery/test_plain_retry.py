# SPDX-License-Identifier: Apache-2.0
"""Memory runs out in the first backward: run again where that is the same to the bit, and where
it is not, the program gets the error and its next step is taken in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from habits import W, deep
from local_agent import LocalAgent
from out_of_memory import Failing, Model, made, run, same
from torch import Tensor, nn

from reprise.torch.meter.room import Room
from reprise.torch.policy.state import Stage
from reprise.torch.recovery import startup


@pytest.fixture(autouse=True)
def _removed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(startup, "room_on", lambda _: Room(1 << 30, "plenty", True))
    yield
    remove_all()
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


@pytest.mark.parametrize("apart", [True, False])
def test_the_first_backward_runs_again_and_no_bit_changes(
    apart: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "room_on", lambda _: Room(1 << 30, "plenty", apart))
    Failing.backwards = 0
    expected = run(made())
    agent, model = LocalAgent(), made()
    session = arm(model, agent)
    Failing.backwards = 1

    found = run(model)

    assert Failing.backwards == 0
    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.plain_steps == 0
    assert agent.ooms == 1
    assert "the unplanned step does not fit (Tried to allocate 2.00 GiB)" in capsys.readouterr().err


def test_what_a_hook_of_the_program_makes_of_an_outputs_gradient_is_what_runs_again() -> None:
    def gradients(model: nn.Module) -> list[Tensor]:
        torch.manual_seed(1)
        loss, more = model(torch.randn(16, W))
        more["out"].register_hook(lambda grad: grad * 3)
        (loss + more["out"].sin().mean()).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    Failing.backwards = 0
    expected = gradients(made())
    model = made()
    arm(model, LocalAgent())
    Failing.backwards = 1

    found = gradients(model)

    assert Failing.backwards == 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def hook(model: Model) -> None:
    model.first[0].weight.register_hook(lambda g: g * 1.0)


def listener(model: Model) -> None:
    model.last.register_forward_hook(lambda m, i, o: None)


def counter(model: Model) -> None:
    model.counts = True


@pytest.mark.parametrize(
    ("prepare", "change"),
    [
        (hook, None),
        (listener, None),
        (counter, None),
        (None, lambda x: x.requires_grad_()),
    ],
)
def test_where_it_would_show_the_error_goes_on_and_the_next_step_is_taken_elsewhere(
    prepare: Callable[[Model], None] | None, change: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def model_of(prepare: Any) -> Model:
        model = made()
        if prepare is not None:
            prepare(model)
        return model

    # The plain job loses the same step: its statistics have been updated all the same.
    Failing.backwards = 1
    expected = run(model_of(prepare), change=change)
    agent, model = LocalAgent(), model_of(prepare)
    session = arm(model, agent)
    Failing.backwards = 1

    found = run(model, change=change)

    assert Failing.backwards == 0
    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.plain_steps == 0
    said = capsys.readouterr().err
    assert "in host memory: memory ran out in the backward (Tried to allocate 2.00 GiB)" in said


def test_a_backward_near_the_memory_limit_is_abandoned_before_it_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Failing.backwards = 0
    expected = run(made())
    model = made()
    session = arm(model)
    live, limit = session.job.meter.live, [0]

    class Meter:
        """More than there is, once the backward has begun."""

        def __getattr__(self, name: str) -> Any:
            return getattr(meter, name)

        def live(self) -> int:
            engine = torch._C._current_graph_task_id() != -1
            limit[0] += engine
            return live() + (engine and session.job.host is None) * (1 << 31)

    meter = session.job.meter
    session.job.meter = Meter()  # type: ignore[assignment]

    found = run(model)

    assert same(found, expected)
    assert limit[0] > 0
    assert "(its backward comes close to plenty)" in capsys.readouterr().err


def test_a_graph_that_a_retry_released_cannot_run_backward_again() -> None:
    model = made()
    arm(model)
    Failing.backwards = 1
    loss, _ = model(torch.randn(16, W))
    loss.backward()

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_existing_gradients_are_not_added_twice() -> None:
    model = made()
    arm(model)
    Failing.backwards = 0
    model(torch.randn(16, W))[0].backward()
    Failing.backwards = 1

    with pytest.raises(torch.OutOfMemoryError):
        model(torch.randn(16, W))[0].backward()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_whose_first_steps_overlap_leave_the_engine_as_it_was(
    order: tuple[int, int],
) -> None:
    models = (deep(), deep())
    armed = [arm(model) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    outs = [model(torch.ones(2, W)) for model in models]
    assert torch.autograd._engine_run_backward is not torch.autograd.graph._engine_run_backward

    for number in order:
        outs[number].sum().backward()
        optimizers[number].step()

    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward
    assert [session.job.measured.plain_steps for session in armed] == [1, 1]


class Halves(nn.Module):
    """Outputs of one node of autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = deep(), deep()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.last(Failing.apply(self.first(x))).chunk(2, 1)  # type: ignore[no-untyped-call,no-any-return]


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_only_outputs_of_a_node_that_reach_the_loss_count(used: tuple[int, ...]) -> None:
    def gradients(model: nn.Module) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(1)
        halves = model(torch.randn(16, W))
        sum((1 + at) * halves[at].square().mean() for at in used).backward()  # type: ignore[union-attr]
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        return found

    torch.manual_seed(0)
    plain, model = Halves(), Halves()
    model.load_state_dict(plain.state_dict())
    Failing.backwards = 0
    expected = gradients(plain)
    arm(model, LocalAgent())
    Failing.backwards = 1

    found = gradients(model)

    assert Failing.backwards == 0
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
