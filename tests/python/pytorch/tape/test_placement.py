# SPDX-License-Identifier: Apache-2.0
"""Replays run where the tape can run them, and the announced peak is the one there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import referee
import torch
from jobs import CapturedGraph, captured, different, plain_step, planned_step, start_meter
from nets import ConvNet, RandomNet, job
from torch import Tensor, nn

from reprise.torch.capture.capture import (
    BACKWARD,
    FORWARD,
    CapturedOp,
    CapturedStep,
    CapturedStorage,
    SavedTensor,
    Unpack,
)
from reprise.torch.capture.sizes import Chosen, chosen_by
from reprise.torch.internals.ops import OpKind
from reprise.torch.tape.placement import Placed, peak_of, place

EARLY, ANYWHERE = 1, 1 << 60


def pulled_forward(graph: CapturedGraph, schedule: list[int], seed: int) -> list[int]:
    """Returns the schedule with bursts of replays some ops earlier, as a planner may place them."""
    message = graph.message()
    execs = [e for e in schedule if e >= 0]
    rng = random.Random(seed)
    for _ in range(30):
        moved = _with_one_burst_earlier(message, execs, rng)
        try:
            referee.evaluate(message, referee.with_frees(message, moved))
        except referee.Invalid:
            continue
        execs = moved
    return referee.with_frees(message, execs)


def _with_one_burst_earlier(
    message: dict[str, Any], execs: list[int], rng: random.Random
) -> list[int]:
    bursts = [at for at, _ in _bursts(execs)]
    if not bursts:
        return execs
    at = rng.choice(bursts)
    end = next(e for b, e in _bursts(execs) if b == at)
    to = max(0, at - rng.randrange(1, 4))
    if message["ops"][execs[to]]["phase"] != "PHASE_BACKWARD":
        return execs
    return [*execs[:to], *execs[at:end], *execs[to:at], *execs[end:]]


def _bursts(execs: list[int]) -> Iterator[tuple[int, int]]:
    """Returns the first and one-past-last position of every group of replays."""
    seen: set[int] = set()
    begin = None
    for position, op in enumerate(execs):
        again = op in seen
        seen.add(op)
        if again and begin is None:
            begin = position
        elif not again and begin is not None:
            yield begin, position
            begin = None


def stands_where_the_tape_runs(graph: CapturedGraph, placed: Placed) -> bool:
    execs = [e for e in placed.schedule if e >= 0]
    stops = {unpack.op for unpack in graph.step.unpacks}
    return all(execs[end] in stops for _, end in _bursts(execs))


@pytest.mark.parametrize("seed", range(6))
def test_only_replays_between_two_unpacks_are_moved(seed: int) -> None:
    made = job(
        ConvNet() if seed % 3 == 0 else RandomNet(seed), *((4, 3, 8, 8), (6, 8))[seed % 3 > 0]
    )
    plain_step(made, 0)
    meter = start_meter()
    graph = captured(made, meter)
    message = graph.message()
    schedule = pulled_forward(graph, referee.random_plan(message, seed), seed)

    for limit in (EARLY, ANYWHERE):
        placed = place(graph, schedule, limit)
        peak, _, _ = referee.evaluate(message, list(placed.schedule))

        assert stands_where_the_tape_runs(graph, placed)
        assert placed.peak_bytes == peak
        assert sorted(e for e in placed.schedule if e >= 0) == sorted(e for e in schedule if e >= 0)


class Branches(nn.Module):
    """One value that is read by many, so that its gradient is added up between the unpacks."""

    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.layers:
            shared = layer(out).sin()
            out = shared.exp().cos() + shared.view(x.shape).tanh() + shared
        return out


@pytest.mark.parametrize("seed", range(4))
def test_the_peak_after_placement_is_the_measured_one(seed: int) -> None:
    made = job(Branches(), 512, 64)
    plain_step(made, 0)
    plain_step(made, 1)
    meter = start_meter()
    if not meter.exact:
        pytest.skip(f"needs the exact meter: {meter.why}")
    graph = captured(made, meter)
    schedule = pulled_forward(graph, referee.random_plan(graph.message(), seed, 0.9), seed)
    placed = place(graph, schedule, ANYWHERE)
    expected = plain_step(made, 7, step=False)

    state, counts, _ = planned_step(made, graph, list(placed.schedule), 7, step=False)
    before = meter.live() - graph.step.live_begin
    _, _, peak = planned_step(made, graph, list(placed.schedule), 8, meter)

    assert counts.replayed
    assert not different(expected, state)
    # Autograd adds gradients up in place where nobody watches, and out of place in a capture.
    assert peak - before <= placed.peak_bytes + 128


def op(phase: int, **what: Any) -> CapturedOp:
    made = CapturedOp(None, "op", phase, OpKind.PURE, phase == FORWARD)
    for key, value in what.items():
        setattr(made, key, value)
    return made


def test_ops_above_the_limit_run_early_if_that_lowers_the_peak() -> None:
    # u1 unpacks a (100 bytes), u2 unpacks s (8 bytes, made of a); sum in between needs 100 bytes of
    # workspace. Late, a waits through sum to make s: 200. Early, s does: 108.
    a, s = (CapturedStorage(size, 0, prior=False, release=3) for size in (100, 8))
    a.id, s.id = 0, 1
    step = CapturedStep(
        ops=[
            op(FORWARD),
            op(FORWARD, writes=[a]),
            op(FORWARD, reads=[a], writes=[s]),
            op(FORWARD),
            op(BACKWARD, reads=[a]),
            op(BACKWARD, workspace_bytes=100),
            op(BACKWARD, reads=[s]),
        ],
        storages=[a, s],
        slots=[SavedTensor(a, 1, (25,), "float32"), SavedTensor(s, 1, (2,), "float32")],
        unpacks=[Unpack(0, 4), Unpack(1, 6)],
        regions=[(1, 4)],
        live_begin=0,
        live_end=0,
        peak_bytes=0,
        step_ns=0,
    )
    graph = CapturedGraph("by hand", step, (a, s), (), (3, 3), 0, "", 0, 0)
    schedule = [0, 1, 2, 3, -1, -2, 1, 4, 2, -1, 5, 6, -2]

    late, early = place(graph, schedule, ANYWHERE), place(graph, schedule, 108)

    assert peak_of(graph, schedule) == 108
    assert (late.peak_bytes, early.peak_bytes) == (200, 108)
    assert [e for e in late.schedule if e >= 0] == [0, 1, 2, 3, 1, 4, 5, 2, 6]
    assert [e for e in early.schedule if e >= 0] == [0, 1, 2, 3, 1, 2, 4, 5, 6]


class Choosing(nn.Module):
    """Works on rows that the data selects."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 48)
        self.outer = nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.where(x[:, 0] > 0)[0]
        return x.index_add(0, rows, self.outer(self.inner(x[rows]).relu()))


def test_sizes_that_depend_on_data_are_planned_larger_than_captured() -> None:
    made = job(Choosing(), 400, 16)
    graph = captured(made, start_meter())
    rows = int((made.inputs[0][:, 0] > 0).sum())

    sizes = {s.name: s.bytes for s in graph.storages if s.chosen is not None}

    assert sizes["inner.aten.addmm.default"] > rows * 48 * 4
    assert sizes["inner.aten.addmm.default"] <= (rows + 2 * 10 + 1) * 48 * 4
    assert all(s.chosen is None for s in graph.storages if s.name == "aten.index_add.default")
    kinds = {op.name: op.kind.name for op in graph.step.ops}
    assert kinds["aten.nonzero.default"] == "ONCE"
    assert kinds["aten.index.Tensor"] == "PURE"


def test_two_standard_deviations_more_rows_are_expected() -> None:
    # 100 of 400: sqrt(100 * 0.75) = 8.66 rows, twice that is 18.
    mask = torch.arange(400) % 4 == 0
    chosen = chosen_by(torch.ops.aten.nonzero.default, (mask,), torch.nonzero(mask))

    assert chosen == Chosen(100, 118)
    assert chosen.largest(100 * 8) == 118 * 8
    assert Chosen(0, 0).largest(24) == 24
