# SPDX-License-Identifier: Apache-2.0
"""Whatever the plan, the gradients are those of the plain program, bit for bit."""

from __future__ import annotations

import copy
import gc
import os
from typing import Any

import pytest
import referee
import torch
from jobs import (
    Tape,
    captured,
    compile_plan,
    different,
    plain_step,
    planned_step,
    start_meter,
)
from nets import WIDTH, Chain, Checkpointed, ConvNet, Custom, RandomNet, job
from tapes import plan, prepared, tape_for
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reprise.torch.tape import tape_run
from reprise.torch.tape.records import Node
from reprise.torch.tape.tape_run import unpack

pytestmark = pytest.mark.usefixtures("half")  # with and without the native engine of the tape

# Random programs. REPRISE_PROGRAMS=10000 looks longer.
PROGRAMS = int(os.environ.get("REPRISE_PROGRAMS", "504"))
BUNDLES = 12


@pytest.mark.train
@pytest.mark.mostly_long(2)
@pytest.mark.parametrize(
    ("bundle", "half"),
    [(bundle, ("compiled", "python")[bundle % 2]) for bundle in range(BUNDLES)],
    indirect=["half"],
)
def test_random_programs_under_random_plans_have_equal_gradients(bundle: int) -> None:
    meter = start_meter()
    prepared(job(Checkpointed()))  # torch imports half of itself at the first of some calls
    gc.collect()
    gc.freeze()  # what that imported, too: a capture looks through the heap
    for model in range(bundle, PROGRAMS, BUNDLES):
        torch.manual_seed(model)
        check_random_program(model, meter, plans=4 if model < BUNDLES else 1)


def check_random_program(model: int, meter: Any, plans: int) -> None:
    made = job(RandomNet(model, length=24 if model < BUNDLES else 6 + model % 12), 4, WIDTH)
    plain_step(made, 0)
    graph = captured(made, meter)
    given_up = 0
    for number in range(plans):
        seed = model + number
        share, again = (1.0, 0.7, 0.4, 1.0)[seed % 4], (0, 0.3, 0.9, 1)[seed % 4]
        schedule = plan(graph, seed, share=share, again=again)
        if number % 2 or model % 3 == 0:
            schedule = referee.wasteful_plan(graph.message(), schedule, seed)
        state = copy.deepcopy(made.model.state_dict())
        expected = plain_step(made, seed, step=False)
        made.model.load_state_dict(state)

        found, counts, _ = planned_step(made, graph, schedule, seed, step=False)

        assert different(expected, found) == [], f"program {model}, plan {seed}"
        assert counts.mismatches == 0, counts.first_mismatch
        assert counts.on_demand == 0
        given_up += counts.dropped
        made.model.load_state_dict(state)
    assert given_up > 0 or plans == 1


class Gates(nn.Module):
    """Four gates on one storage, each written in place after the one before it was saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).sin()
        a, b, c, d = y.unsafe_chunk(4, 1)
        a.sigmoid_(), b.tanh_(), c.sigmoid_(), d.tanh_()
        return self.second(torch.cat([a * b, c, d, a], 1)).exp()


class Recurrent(nn.Module):
    """oneDNN's LSTM makes its workspace only where gradients are on."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x.sin())[0].exp()


@pytest.mark.parametrize("make", [Gates, Recurrent])
@pytest.mark.parametrize("seed", range(4))
def test_models_that_once_failed_in_the_zoo_run_bit_for_bit(make: Any, seed: int) -> None:
    made = job(make(), 5, 3, WIDTH) if make is Recurrent else job(make())
    graph = prepared(made)
    expected = plain_step(made, seed, step=False)

    found, counts, _ = planned_step(
        made, graph, plan(graph, seed, again=seed / 3), seed, step=False
    )

    assert different(expected, found) == []
    assert (counts.mismatches, counts.on_demand) == (0, 0)
    assert counts.replayed > 0


class Between(nn.Module):
    """Blocks that the program checkpoints, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(6))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for number, (norm, up) in enumerate(zip(self.norms, self.ups, strict=True)):
            block = lambda x, norm=norm, up=up: x + up(norm(x)).sin().exp()  # noqa: E731
            x = block(x) if number % 2 else checkpoint(block, x, use_reentrant=False)
        return x


@pytest.mark.parametrize("seed", range(1, 4))
def test_blocks_that_the_program_checkpoints_do_not_disturb_the_hooks_around_them(
    seed: int,
) -> None:
    made = job(Between())
    graph = prepared(made)
    expected = plain_step(made, seed, step=False)

    schedule = plan(graph, seed, share=0.15, again=0.0)
    found, counts, _ = planned_step(made, graph, schedule, seed, step=False)

    assert different(expected, found) == []
    assert counts.first_mismatch == ""
    assert counts.on_demand == 0


@pytest.mark.parametrize(
    ("make", "unseen"),
    [
        (lambda: job(ConvNet(), 4, 3, 8, 8), 0),
        # torch.utils.checkpoint keeps generator states of 5,056 bytes that no op makes.
        (lambda: job(Checkpointed()), 2 * 5056),
        (lambda: job(Custom()), 0),
        (lambda: job(Chain(30)), 0),
    ],
    ids=["convolutions", "checkpointed", "custom function", "chain"],
)
def test_planned_steps_have_equal_gradients_and_the_predicted_peak(make: Any, unseen: int) -> None:
    made = make()
    graph = prepared(made)
    meter = start_meter()
    schedule = plan(graph)
    state = copy.deepcopy(made.model.state_dict())
    expected = plain_step(made, 3, step=False)
    made.model.load_state_dict(state)
    found, counts, _ = planned_step(made, graph, schedule, 3, step=False)
    assert different(expected, found) == []
    assert (counts.mismatches, counts.on_demand) == (0, 0)
    del expected, found, state

    before = meter.live()
    _, _, peak = planned_step(made, graph, schedule, 3, meter)

    if meter.exact:
        predicted, _, _ = referee.evaluate(graph.message(), schedule)
        shift = before - graph.step.live_begin
        assert peak - shift <= predicted + 128 + unseen


def test_a_plan_that_discards_nothing_sets_no_hook() -> None:
    made = job(Chain(3))
    graph = prepared(made)
    tape = Tape(compile_plan(graph, referee.base_schedule(graph.message())))
    run = tape.begin()

    with tape.region():
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    run.finish()

    assert run.counts.mismatches == 0


def test_a_storage_dropped_twice_is_made_twice() -> None:
    made = job(RandomNet(5))
    graph = prepared(made)

    _, once, _ = planned_step(made, graph, plan(graph, again=0.0), 1)
    _, twice, _ = planned_step(made, graph, plan(graph, again=1.0), 1)

    assert twice.replayed > once.replayed


# ---- Memory -------------------------------------------------------------------


def test_no_record_is_alive_after_backward_without_the_garbage_collector() -> None:
    made = job(RandomNet(1))
    graph = prepared(made)
    tape = tape_for(graph)
    gc.collect()
    gc.disable()
    try:
        made.begin(0)
        run = tape.begin()
        with tape.region():
            out = made.model(*made.inputs)
        loss = made.loss(out)
        del out
        assert run.waits()
        loss.backward()
        assert not run.waits()
        assert [o for o in gc.get_objects() if type(o) is Node and o.args is not None] == []
        del loss, run
        tape.begin()
        assert [o for o in gc.get_objects() if type(o) is Node] == []
    finally:
        gc.enable()


def test_tensors_that_the_program_still_holds_are_not_lost() -> None:
    made = job(Chain(5))
    graph = prepared(made)
    tape = tape_for(graph)
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    value = out.detach().clone()
    made.loss(out).backward()

    assert torch.equal(out.detach(), value)


def test_the_unpack_hook_outlives_its_tape() -> None:
    made = job(Chain(5))
    graph = prepared(made)
    expected = plain_step(made, 0, step=False)
    tape = tape_for(graph)
    tape.begin()
    made.begin(0)
    with tape.region():
        loss = made.loss(made.model(*made.inputs))
    del tape
    gc.collect()
    loss.backward()

    assert different(expected, made.state()) == []
    assert callable(unpack)


def test_an_op_on_another_stream_than_in_the_capture_leaves_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [7]
    monkeypatch.setattr(tape_run, "stream_of", lambda device: lambda: now[0])
    made = job(Chain(6))
    graph = prepared(made)
    tape = Tape(compile_plan(graph, plan(graph, 0)))
    # This torch has no CUDA streams that the native engine could ask about.
    tape._compiled, tape._device = None, torch.device("cuda:0")
    expected = plain_step(made, 3, step=False)

    same, as_captured, _ = planned_step(made, graph, [], 3, step=False, tape=tape)
    handle = list(made.model.modules())[-1].register_forward_pre_hook(
        lambda *_: now.__setitem__(0, 8)
    )
    again, strayed, _ = planned_step(made, graph, [], 3, step=False, tape=tape)
    handle.remove()

    assert as_captured.mismatches == 0
    assert strayed.mismatches == 1
    assert "runs on a different stream than in the capture" in strayed.first_mismatch
    assert different(expected, same) == different(expected, again) == []
