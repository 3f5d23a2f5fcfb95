# SPDX-License-Identifier: Apache-2.0
"""Storages leave for host memory and come back, and no bit changes; what is alive is what the plan
says; whatever the program does in between."""

from __future__ import annotations

import copy
import gc
import itertools
from typing import Any

import pytest
import torch
from jobs import CapturedGraph, Job, captured, different, plain_step, planned_step, start_meter
from nets import WIDTH, Checkpointed, RandomNet, job
from parking import (
    FAST,
    FETCH,
    FETCHED,
    SEND,
    SENT,
    bytes_at,
    movable,
    parked,
    parking_tape,
)
from tapes import plan, prepared
from torch import Tensor, nn

from reprise.base.errors import RepriseError
from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.tape.compile_plan import PlanRejected, compile_plan
from reprise.torch.tape.tape import Tape

pytestmark = pytest.mark.usefixtures("half")  # with and without the native engine of the tape


@pytest.mark.train
@pytest.mark.parametrize("bundle", range(4))
def test_random_programs_with_storages_on_the_host_have_equal_gradients(bundle: int) -> None:
    meter = start_meter()
    prepared(job(Checkpointed()))  # torch imports half of itself at the first of some calls
    gc.collect()
    gc.freeze()  # what that imported, too: a capture looks through the heap
    many = 0
    for model in range(bundle, 40, 4):
        torch.manual_seed(model)
        many += check_random_program(model, meter)
    assert many > 20


def check_random_program(model: int, meter: Any) -> int:
    made = job(RandomNet(model, length=6 + model % 18), 4, WIDTH)
    plain_step(made, 0)
    graph = captured(made, meter)
    many = 0
    for seed in range(model, model + 3):
        schedule = on_the_host(graph, seed)
        state = copy.deepcopy(made.model.state_dict())
        expected = plain_step(made, seed, step=False)
        made.model.load_state_dict(state)

        tape = parking_tape(graph, schedule)
        found, counts, _ = planned_step(made, graph, schedule, seed, step=False, tape=tape)

        assert different(expected, found) == [], f"program {model}, plan {seed}"
        assert counts.mismatches == 0, counts.first_mismatch
        assert counts.on_demand == 0
        places = tape.program.places
        assert not places or tape.run.parked is not None
        if tape.run.parked is not None and places:
            assert tape.run.parked.fetched == sum(place.fetches for place in places.values())
        many += len(places)
        made.model.load_state_dict(state)
    return many


def on_the_host(graph: CapturedGraph, seed: int, share: float = 0.7) -> list[int]:
    """A random plan that recomputes all, half or nothing of what it can, with random storages on
    the host."""
    again = (1.0, 0.5, 0.0)[seed % 3]
    schedule = plan(graph, seed, share=again)
    return parked(graph.message(), schedule, movable(graph), seed, share)[0]


class Block(nn.Module):
    """A residual block that saves a dozen tensors, and holds none of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))).sin())


def blocks(width: int = 32, depth: int = 4, rows: int = 64) -> Job:
    return job(nn.Sequential(*(Block(width) for _ in range(depth))), rows, width)


@pytest.mark.parametrize("half", ["python"], indirect=True)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_alive_is_at_most_what_the_plan_says_at_every_op(seed: int) -> None:
    made = blocks()
    graph, meter = prepared(made), start_meter()
    schedule = on_the_host(graph, seed)
    limits = limits_by_op(graph.message(), schedule)
    tape = parking_tape(graph, schedule)
    assert tape.program.places
    planned_step(made, graph, schedule, 0, step=False, tape=tape)
    seen: list[tuple[int, int]] = []  # the op that is about to run, the peak since the one before

    def at(op_plus_one: int) -> None:
        seen.append((op_plus_one - 1, meter.peak()))
        meter.reset_peak()

    made.begin(0)
    tape.begin(at=at)
    with tape.region():
        out = made.model(*made.inputs)
    loss = made.loss(out)
    del out
    loss.backward()
    seen.append((len(limits), meter.peak()))

    # What leaves right before an op is still there when the tape says that the op begins.
    for (op, _), (after, peak) in itertools.pairwise(seen):
        if op >= 0:
            assert peak <= max(limits[max(0, op - 1) : max(after, op + 1)]), (
                f"from op {op} to op {after}"
            )


def limits_by_op(graph: Any, schedule: list[int]) -> list[int]:
    """By op in base order: the most that is alive from the end of the op before it to its own."""
    execs = [entry for entry in schedule if entry >= 0]
    found: list[int] = []
    most = 0
    for op, alive in zip(execs, bytes_at(graph, schedule), strict=True):
        most = max(most, alive)
        if op == len(found):
            found.append(most)
            most = 0
    return found


# ---- Whatever the program does --------------------------------------------------------


@pytest.fixture
def parking() -> tuple[Job, CapturedGraph, Tape]:
    made = blocks()
    graph = prepared(made)
    tape = parking_tape(graph, on_the_host(graph, 2, share=1.0))
    assert len(tape.program.places) > 10
    return made, graph, tape


def forward(made: Job, tape: Tape) -> Any:
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    return made.loss(out)


def grads(made: Job) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}


def held(tape: Tape) -> int:
    """How many storages a step holds on the device for copies that are not done."""
    assert tape.run.parked is not None
    return sum(c.here is not None or c.coming is not None for c in tape.run.parked._copies.values())


def test_a_graph_that_is_kept_gives_the_same_gradients_twice(parking: Any) -> None:
    made, _, tape = parking
    expected = plain_step(made, 0, step=False)

    made.begin(0)
    loss = forward(made, tape)
    loss.backward(retain_graph=True)
    first = grads(made)
    made.optimizer.zero_grad()
    loss.backward()

    assert different(expected, first) == []
    assert different(expected, grads(made)) == []
    assert tape.run.counts.on_demand > 0


def test_a_backward_in_another_order_fetches_at_once(parking: Any) -> None:
    made, _, tape = parking
    made.begin(0)
    out = made.model(*made.inputs)
    names = [n for n, _ in made.model.named_parameters()]
    last = [p for n, p in made.model.named_parameters() if n.startswith("3.")]
    expected = torch.autograd.grad(made.loss(out), last)

    made.begin(0)
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    middle = made.loss(out)
    found = torch.autograd.grad(middle, last, retain_graph=True)
    rest = torch.autograd.grad(middle, [p for n, p in made.model.named_parameters()])

    assert all(map(torch.equal, expected, found))
    assert len(rest) == len(names)
    assert different(plain_step(made, 0, step=False), dict(zip(names, rest, strict=True))) == []


def test_a_forward_that_raises_leaves_no_copy_under_way(parking: Any) -> None:
    made, graph, tape = parking
    handle = made.model[2].register_forward_hook(_fail)
    with pytest.raises(ZeroDivisionError):
        forward(made, tape)

    assert held(tape) == 0
    handle.remove()
    expected = plain_step(made, 0, step=False)
    found, counts, _ = planned_step(made, graph, [], 0, step=False, tape=tape)
    assert different(expected, found) == []
    assert counts.mismatches == 0


def _fail(*_: Any) -> None:
    raise ZeroDivisionError


def test_a_graph_that_is_dropped_holds_nothing(parking: Any) -> None:
    made, _, tape = parking
    loss = forward(made, tape)
    del loss

    assert held(tape) == 0


def test_a_dropped_forward_is_followed_by_one_that_is_planned(parking: Any) -> None:
    made, _, tape = parking
    expected = plain_step(made, 0, step=False)

    made.begin(0)
    loss = forward(made, tape)
    del loss
    with tape.region():
        out = made.model(*made.inputs)
    made.loss(out).backward()

    assert different(expected, grads(made)) == []
    assert tape.run.counts.mismatches == 0


def test_a_step_whose_graph_lives_on_keeps_its_bytes_from_the_next_one(parking: Any) -> None:
    made, _, tape = parking
    expected = plain_step(made, 0, step=False)

    made.begin(0)
    first = forward(made, tape)
    second = forward(made, tape)
    second.backward()
    assert different(expected, grads(made)) == []
    made.optimizer.zero_grad()
    first.backward()

    assert different(expected, grads(made)) == []
    assert "the host has no room" in tape.run.counts.first_mismatch


def test_a_run_that_takes_the_place_of_a_failed_one_takes_its_places(parking: Any) -> None:
    made, graph, tape = parking
    expected = plain_step(made, 0, step=False)

    made.begin(0)
    loss = forward(made, tape)
    failed = tape.run
    failed.let_go()
    assert failed.parked._copies  # its graph is still there
    assert all(copy.left for copy in failed.parked._copies.values())
    del loss
    failed.let_go()
    found, counts, _ = planned_step(made, graph, [], 0, step=False, tape=tape)

    assert different(expected, found) == []
    assert counts.mismatches == 0


def test_what_is_written_after_the_forward_comes_back_as_it_was() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(32, 32), nn.Linear(32, 32)
            self.kept: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x).sin()
            self.kept = [y.detach()] if self.writes else []
            return self.other(y).exp()

        writes = False

    made = job(Keeps(), 64, 32)
    graph = prepared(made)
    tape = parking_tape(graph, on_the_host(graph, 2, share=1.0))
    expected = plain_step(made, 0, step=False)

    made.begin(0)
    made.model.writes = True
    loss = forward(made, tape)
    made.model.kept.pop().zero_()
    loss.backward()

    assert different(expected, grads(made)) == []


class Picks(nn.Module):
    """Writes one of two storages: its ops do not tell which."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(32, 32), nn.Linear(32, 32)
        self.first = False

    def forward(self, x: Tensor) -> Tensor:
        y, z = self.one(x), self.other(x)
        (y if self.first else z).mul_(2)
        out = y.sin() + z.cos()
        del y, z
        return self.one(out).exp().tanh()


def test_what_is_written_while_it_leaves_is_not_taken_for_what_it_was() -> None:
    made = job(Picks(), 64, 32)
    graph = prepared(made)
    tapes = [parking_tape(graph, on_the_host(graph, seed, share=1.0)) for seed in (2, 5, 8)]
    tape = max(tapes, key=lambda tape: len(tape.program.places))
    names = [graph.step.ops[p.maker].name for p in tape.program.places.values()]
    assert "aten.addmm.default" in names
    made.model.first = True
    expected = plain_step(made, 0, step=False)

    found, counts, _ = planned_step(made, graph, [], 0, step=False, tape=tape)

    assert different(expected, found) == []
    assert counts.mismatches > 0


class InPlace(nn.Module):
    """Rectifiers that write their inputs, as in most networks of convolutions, and a sum that does
    so later."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            y = nn.functional.relu(norm(convolution(x)), inplace=True)
            x = nn.functional.relu_(y.mul(2).add_(x))
        return x


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_in_place_leaves_after_the_last_write(seed: int) -> None:
    made = job(InPlace(), 4, 8, 8, 8)
    graph = prepared(made)
    written = {s.id for op in graph.step.ops for s in op.mutates if s.id >= 0}
    assert len(movable(graph) & written) == 7  # and the output, which the program holds
    state = copy.deepcopy(made.model.state_dict())
    expected = plain_step(made, 0, step=False)
    made.model.load_state_dict(state)
    tape = parking_tape(graph, on_the_host(graph, seed, share=1.0))
    assert seed % 3 == 0 or written & set(tape.program.places)  # else all of it is recomputed

    found, counts, _ = planned_step(made, graph, [], 0, step=False, tape=tape)

    assert different(expected, found) == []
    assert counts.mismatches == counts.on_demand == 0, counts.first_mismatch


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([SENT(0)], "was not sent"),
        ([FETCH(0)], "is present"),
        ([FETCHED(0)], "was not fetched"),
        ([SEND(0), SENT(0), FETCH(0)], "while it comes back"),
        ([SEND(0), SENT(0), FETCH(0), FETCHED(0), SEND(0)], "cannot send it"),
        ([-1 - (5 << 24)], "no known kind"),
    ],
)
def test_a_schedule_whose_copies_make_no_sense_is_refused(entries: list[int], why: str) -> None:
    made = blocks(depth=1)
    graph = prepared(made)
    message = graph.message()
    s = min(movable(graph))
    maker = next(op["id"] for op in message["ops"] if s in op["writes"])
    schedule = plan(graph, share=0.0)
    at = schedule.index(maker) + 1
    schedule[at:at] = [entry - s for entry in entries]

    with pytest.raises(PlanRejected, match=why):
        compile_plan(graph, schedule)


def test_a_program_with_copies_needs_somewhere_to_copy_to() -> None:
    made = blocks()
    graph = prepared(made)
    with pytest.raises(RepriseError, match="uses host memory"):
        Tape(compile_plan(graph, on_the_host(graph, 2)))


def test_a_block_that_the_system_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = blocks()
    graph = prepared(made)
    schedule = on_the_host(graph, 2)

    def refuse(size: int) -> Any:
        raise OSError("no memory")

    monkeypatch.setattr("reprise.torch.offload.slow_tier.host_buffer", refuse)
    with pytest.raises(RepriseError, match="does not give"):
        parking_tape(graph, schedule, SlowTier(FAST))
