# SPDX-License-Identifier: Apache-2.0
"""Where the tape can run ops again, as the step graph says it, and the peak of what runs there."""

from __future__ import annotations

import math

import pytest
import referee
import torch
from jobs import captured, different, plain_step, planned_step, start_meter
from nets import ConvNet, job
from torch import Tensor, nn

from reprise.torch.capture.identity import Storages
from reprise.torch.capture.kinds import Chosen, Exchange, chosen_by
from reprise.torch.tape.carried import own_frees


def replays(schedule: list[int]) -> list[tuple[int, int]]:
    """Returns every op that runs again in a schedule, with the op that runs next for the first
    time."""
    execs = [e for e in schedule if e >= 0]
    firsts = [execs.index(e) == at for at, e in enumerate(execs)]
    following = len(execs)
    found = []
    for at in reversed(range(len(execs))):
        following = execs[at] if firsts[at] else following
        if not firsts[at]:
            found.append((execs[at], following))
    return found


def test_ops_run_again_right_before_those_that_unpack_a_saved_tensor_and_nowhere_else() -> None:
    made = job(ConvNet(), 4, 3, 8, 8)
    plain_step(made, 0)
    graph = captured(made, start_meter())
    message = graph.message()
    points = {o for o, op in enumerate(message["ops"]) if op.get("replay_point", True)}

    schedule = referee.random_plan(message, 1)

    assert points == {unpack.op for unpack in graph.step.unpacks}
    assert 0 < len(points) < sum(op["phase"] == "PHASE_BACKWARD" for op in message["ops"])
    assert replays(schedule)
    assert {before for _, before in replays(schedule)} <= points
    # The same step has the same frees, whoever adds them, and the same peak.
    assert own_frees(graph, schedule) == schedule
    base, _, _ = referee.evaluate(message, referee.base_schedule(message))
    assert graph.base_peak_bytes() == base


class Branches(nn.Module):
    """One value read by many: its gradient is added up between the unpacks."""

    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.layers:
            shared = layer(out).sin()
            out = shared.exp().cos() + shared.view(x.shape).tanh() + shared
        return out


@pytest.mark.parametrize("seed", range(2))
def test_the_peak_of_a_schedule_with_replays_where_the_tape_runs_them_is_the_measured_one(
    seed: int,
) -> None:
    made = job(Branches(), 512, 64)
    plain_step(made, 0)
    plain_step(made, 1)
    meter = start_meter()
    if not meter.exact:
        pytest.skip(f"needs the exact meter: {meter.why}")
    graph = captured(made, meter)
    message = graph.message()
    schedule = referee.random_plan(message, seed, 0.9)
    announced, _, _ = referee.evaluate(message, schedule)
    expected = plain_step(made, 7, step=False)

    state, counts, _ = planned_step(made, graph, schedule, 7, step=False)
    before = meter.live() - graph.step.live_begin
    _, _, peak = planned_step(made, graph, schedule, 8, meter)

    assert counts.replayed
    assert not different(expected, state)
    # Autograd adds gradients up in place where nobody watches, and out of place in a capture.
    assert peak - before <= announced + 128


class Choosing(nn.Module):
    """Works on the rows that the data chooses."""

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


class Parted(nn.Module):
    """Works on a part of the rows that the data chooses, and on all of them in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(16, 48)
        self.whole = nn.Linear(32, 48)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[x[:, 0] > 0]
        half = len(chosen) // 2
        pairs = chosen[: 2 * half].clone().view(half, 32)
        return self.part(chosen[:half]).sum(0) + self.whole(pairs).sum(0)


def test_a_part_of_chosen_rows_varies_as_they_do() -> None:
    made = job(Parted(), 400, 16)
    graph = captured(made, start_meter())

    sizes = {s.name: s.chosen for s in graph.storages}

    chosen = sizes["aten.index.Tensor"]
    assert chosen is not None
    half = chosen.rows // 2
    most = math.ceil(half * chosen.most / chosen.rows)
    assert sizes["part.aten.addmm.default"] == Chosen(half, most)


def test_a_count_of_as_many_kinds_as_are_asked_for_does_not_vary() -> None:
    values, count = torch.tensor([0, 3, 1, 1]), torch.ops.aten.bincount.default

    assert chosen_by(count, (values, None, 8), torch.bincount(values, minlength=8)) is None
    assert chosen_by(count, (values,), torch.bincount(values)) is not None


def test_what_comes_back_from_other_ranks_is_as_much_as_was_sent_there() -> None:
    places, sent = Storages([], {}, start_meter(), None), torch.ones(10, 4)  # type: ignore[arg-type]
    exchange = "_c10d_functional.all_to_all_single.default"
    there, back, even = torch.empty(12, 4), torch.empty(10, 4), torch.empty(10, 4)
    for tensor in (there, back, even):
        storage = places.of(tensor)
        assert storage is not None
        storage.prior = False

    found = []
    for made, given, received, to in (
        (there, sent, [5, 7], [4, 6]),
        (back, there, [4, 6], [5, 7]),
        (even, sent, [5, 5], [5, 5]),
    ):
        one = Exchange.of(exchange, (given, received, to, "0"), made)
        if one is not None:
            places.exchanged(one)
        storage = places.of(made)
        assert storage is not None
        found.append(storage.chosen)

    assert found == [Chosen(12, 17), None, None]  # of 20: sqrt(12 * 0.4) = 2.19, twice that is 5
