# SPDX-License-Identifier: Apache-2.0
"""Memory runs out in a planned step: it runs again under a tighter plan if that changes no bit. If
it would, the program gets the error, and the next step runs under the tighter plan."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all, sessions
from habits import W, evidence
from local_agent import LocalAgent
from out_of_memory import Failing, Model, same
from torch import Tensor, nn

from reprise.torch.internals.watch import close_watches
from reprise.torch.meter.room import Room
from reprise.torch.policy.state import Stage
from reprise.torch.recovery import planned_retry


@pytest.fixture(autouse=True)
def _removed(scarce: None) -> Iterator[None]:
    failing.clear()
    live.clear()
    Failing.backwards = 0
    yield
    remove_all()
    close_watches()  # of a graph that is kept
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


# By step and batch: how many backwards run out of memory.
failing: dict[tuple[int, int], int] = {}
# The live bytes at the beginning of every forward of the model.
live: list[int] = []


class Measured(Model):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if sessions:
            live.append(sessions[0].job.meter.live())
        return super().forward(x)


def made() -> Measured:
    torch.manual_seed(0)
    return Measured()


Loss = Callable[[Model, Tensor], Tensor]


def usual(model: Model, x: Tensor) -> Tensor:
    loss, more = model(x)
    noise = torch.rand(())  # drawn between forward and backward
    return loss + noise * more["out"].sin().mean()


def run(
    model: Model,
    steps: int = 10,
    batches: int = 1,
    loss_of: Loss = usual,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> list[dict[str, str]]:
    """Runs a loop that goes on after an error; returns the evidence of the steps that succeeded."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for step in range(1, steps + 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        try:
            for batch in range(1, batches + 1):
                loss = loss_of(model, torch.randn(16, W))
                Failing.backwards = failing.get((step, batch), 0)
                backward(loss)
        except torch.OutOfMemoryError:
            loss = None  # type: ignore[assignment]
            continue
        optimizer.step()
        found.append(evidence(([loss.detach()], [model])))
    return found


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("again", [0.0, 0.3])
def test_a_later_backward_runs_again_and_no_bit_changes(
    batches: int, again: float, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run(made(), batches=batches)
    agent, model = LocalAgent(again=again), made()
    session = arm(model, agent, verify_every=4)
    # The last backward of a step, and one of a step that is checked.
    failing.update({(6, batches): 1, (8, 1): 1})

    found = run(model, batches=batches)

    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.record.verdict().checks_differing == 0
    assert agent.ooms == 2
    said = capsys.readouterr().err
    assert said.count("the step runs again under a tighter plan") == 2
    # Asked again for less each time, and the step that ran out waited for it.
    assert sum(reserve > 0 for reserve in agent.reserves) == 2
    assert agent.steps[-1]["plan_id"] == 3


class Scaled(Measured):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return super().forward(x * torch.linspace(0.1, 0.7, W).to(x.dtype))


def in_double_precision(model: Model, x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return model(x)[0]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_forward_runs_again_with_the_settings_of_kernels_that_it_had() -> None:
    torch.manual_seed(0)
    expected = run(Scaled(), loss_of=in_double_precision)
    torch.manual_seed(0)
    model = Scaled()
    arm(model, LocalAgent(0.3), verify_every=0)
    failing.update({(6, 1): 1})

    found = run(model, loss_of=in_double_precision)

    assert len(live) == 11  # one of them twice
    assert same(found, expected)


@pytest.mark.parametrize("fast", [True, False])
def test_the_failed_graph_is_freed_before_the_forward_runs_again(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setenv("REPRISE_FAST", "0")
    torch.manual_seed(0)
    model = Measured()
    session = arm(model, LocalAgent(0.3), verify_every=0)
    if not session.job.meter.exact:
        pytest.skip("needs the exact meter")
    failing.update({(7, 1): 1})

    run(model)

    *_, before, again = live[:8]
    assert len(live) == 11
    # Of the failed step only what the loss has made is still there.
    assert again - before < 4096


def test_what_a_backward_is_remembered_with_needs_no_garbage_collector() -> None:
    model = made()
    arm(model, verify_every=0)
    run(model, 6)
    gc.collect()
    gc.disable()
    try:
        loss = usual(model, torch.randn(16, W))
        loss.backward()
        kept = weakref.ref(loss)

        del loss

        assert kept() is None
    finally:
        gc.enable()


def test_a_released_graph_cannot_run_backward_again() -> None:
    model = made()
    arm(model, verify_every=0)
    run(model, 6)
    loss = usual(model, torch.randn(16, W))
    Failing.backwards = 1
    loss.backward()

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def hook(model: Model) -> None:
    model.first[0].weight.register_hook(lambda g: g * 1.0)


def listener(model: Model) -> None:
    model.last.register_forward_hook(lambda m, i, o: None)


def wants(model: Model, x: Tensor) -> Tensor:
    return usual(model, x.requires_grad_())


outside = nn.Linear(W, 1)


def beside(model: Model, x: Tensor) -> Tensor:
    return usual(model, x) + outside(model(x)[1]["out"]).mean()


def keeps(loss: Tensor) -> None:
    loss.backward(retain_graph=True)


@pytest.mark.parametrize(
    ("prepare", "loss_of", "backward", "why"),
    [
        (hook, usual, Tensor.backward, "a parameter has gradient hooks"),
        (listener, usual, Tensor.backward, "a second forward would have side effects"),
        (None, wants, Tensor.backward, "other than the model's parameters has gradients"),
        (None, beside, Tensor.backward, "something outside the model also has parameters"),
        (None, usual, keeps, "its graph is retained"),
    ],
)
def test_where_it_would_show_the_error_goes_on_and_the_next_step_runs_under_a_tighter_plan(
    prepare: Callable[[Model], None] | None,
    loss_of: Loss,
    backward: Callable[[Tensor], None],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def model_of() -> Model:
        model = made()
        if prepare is not None:
            prepare(model)
        return model

    failing.update({(6, 1): 1})
    expected = run(model_of(), loss_of=loss_of, backward=backward)
    agent, model = LocalAgent(), model_of()
    arm(model, agent, verify_every=0)

    found = run(model, loss_of=loss_of, backward=backward)

    assert len(found) == 9
    assert same(found, expected)
    said = capsys.readouterr().err
    assert said.count("which cannot be run again") == 1
    assert why in said
    assert agent.reserves[1] > agent.reserves[0]
    assert agent.steps[-4]["plan_id"] == 2  # the very next step


def test_large_gradients_of_outputs_are_kept_once_memory_has_run_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planned_retry, "SMALL", 100)
    failing.update({(6, 1): 1})
    expected = run(made())
    model = made()
    arm(model, LocalAgent(), verify_every=0)
    failing.update({(6, 1): 1, (8, 1): 1})  # the second one is taken again

    found = run(model)

    assert same(found, expected)
    said = capsys.readouterr().err
    assert said.count("are kept only once memory has run out") == 1
    assert said.count("the step runs again under a tighter plan") == 1


def test_a_step_that_runs_out_of_memory_twice_raises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, agent = made(), LocalAgent()
    arm(model, agent, verify_every=0)
    failing.update({(6, 1): 2})

    found = run(model)

    assert len(found) == 9
    said = capsys.readouterr().err
    assert said.count("it has already been run again") == 1
    assert agent.steps[-1]["plan_id"] == 3  # tighter twice


def test_the_state_of_a_small_step_is_kept_once_memory_has_run_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planned_retry, "LITTLE", 1 / 8)
    monkeypatch.setattr(planned_retry, "room_on", lambda _: Room(1 << 30, "the test's", True))
    model, agent = made(), LocalAgent()
    session = arm(model, agent, verify_every=0)
    run(model, 5)
    assert session.parts.planned_retry.forward is None
    assert session.job.remembering_ns == 0
    failing.update({(1, 1): 1, (3, 1): 1})

    found = run(model, 5)

    assert len(found) == 4
    said = capsys.readouterr().err
    assert said.count("used little memory") == 1
    assert said.count("the step runs again under a tighter plan") == 1
    assert session.job.remembering_ns > 0


def test_a_backward_that_returns_gradients_is_not_retried() -> None:
    model, agent = made(), LocalAgent()
    arm(model, agent, verify_every=0)
    run(model, 6)
    loss = usual(model, torch.randn(16, W))
    Failing.backwards = 1

    with pytest.raises(torch.OutOfMemoryError):
        torch.autograd.grad(loss, list(model.parameters()))

    run(model, 1)
    assert agent.steps[-1]["plan_id"] == 2


def test_a_forward_that_changes_python_state_is_not_retried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Counts(Model):
        calls = 0

        def forward(self, x: Tensor) -> Any:
            self.calls += 1
            return super().forward(x)

    model = Counts()
    arm(model, verify_every=0)
    failing.update({(6, 1): 1})

    run(model)

    assert model.calls == 10
    assert "a second forward would have side effects" in capsys.readouterr().err
