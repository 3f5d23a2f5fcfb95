# SPDX-License-Identifier: Apache-2.0
"""The cost of the tape is measured on the machine it runs on, with the tape itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reprise.torch.tape import costs
from reprise.torch.tape.costs import Costs
from reprise.torch.tape.tape import Tape


@pytest.mark.parametrize("recomputes", [False, True])
def test_handwritten_programs_of_the_measurement_run_as_planned(recomputes: bool) -> None:
    cold = costs._ColdCaches(4096)
    job = costs._Saves(5, again=recomputes)
    program = job.program(cold)
    tape = Tape(program)

    run = tape.begin()
    with tape.region():
        made = job.forward(cold)
    torch.autograd.backward(made, [torch.ones(5)])
    run.finish()

    again = 5 if recomputes else 0
    assert sum(map(bool, program.bursts)) == again
    assert (run.counts.dropped, run.counts.replayed) == (again, again)
    assert (run.counts.mismatches, run.counts.on_demand) == (0, 0)
    # atan2(1, 1) changes with its first argument by 1/2, and there are 5 of them.
    assert job.x.grad is not None
    assert job.x.grad.item() == 2.5


def test_measuring_leaves_no_trace() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()

    found = costs.measured_costs(3000)

    assert found is costs.measured_costs(4096)
    assert min(found.op_ns, found.saved_ns, found.replay_ns, found.write_ns, found.enter_ns) >= 0
    assert found.replay_ns >= found.op_ns
    assert torch.equal(before, torch.get_rng_state())
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_plan_that_discards_nothing_costs_nothing() -> None:
    armed = costs._Saves(4, again=True).program(costs._ColdCaches(4096))
    idle = replace(armed, replays=0)

    # One forward of 4 pairs and what is between them, 4 * 2 * 4 + 1 = 33 ops; 12 saved tensors that
    # the native engine, where it is there, may leave alone.
    tape = Tape(armed)
    assert Costs(3, 2, 9, 5, 7).armed_ns(tape) == 7 + 33 * 3 + tape.hooked * 2
    assert Costs(3, 2, 9, 5, 7).armed_ns(Tape(idle)) == 0


def test_an_op_that_writes_in_place_costs_more_than_any_op() -> None:
    writing = Tape(costs._Writes(6).program(costs._ColdCaches(4096)))

    # One forward of 6 ops, each of which writes, and the 3 after each of them.
    assert Costs(3, 2, 9, 5, 7).armed_ns(writing) == 7 + 6 * 4 * 3 + 6 * 5


def test_a_busy_machine_does_not_make_the_measurement_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rounds are counted, not timed, up to MOST_S: a clock of processor time that is a thousand
    times as fast changes nothing."""
    forwards: list[int] = []
    real = costs._Saves.forward
    clock = costs.time.thread_time_ns

    def counted(self: costs._Saves, cold: costs._ColdCaches) -> torch.Tensor:
        forwards[-1] += 1
        return real(self, cold)

    monkeypatch.setattr(costs._Saves, "forward", counted)
    monkeypatch.setattr(costs, "ROUNDS", 2)
    for times in (1, 1000):
        forwards.append(0)
        busy = SimpleNamespace(
            thread_time_ns=lambda times=times: clock() * times, monotonic=lambda: 0.0
        )
        monkeypatch.setattr(costs, "time", busy)
        costs._measure(4096)

    assert forwards[0] == forwards[1] > 0


def test_a_measurement_that_takes_too_long_ends_after_a_round_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rounds: list[costs._Job] = []
    real = costs._Looks.round
    seconds = iter(range(0, 1000, 10))

    def counted(self: costs._Looks, cold: costs._ColdCaches, tape: Tape) -> None:
        rounds.append(self)
        real(self, cold, tape)

    monkeypatch.setattr(costs._Looks, "round", counted)
    clock = SimpleNamespace(
        thread_time_ns=costs.time.thread_time_ns, monotonic=lambda: next(seconds)
    )
    monkeypatch.setattr(costs, "time", clock)

    found = costs._measured.__wrapped__(4096)

    assert found.replay_ns >= found.op_ns >= 0
    assert len(rounds) == 2 * 3  # one to warm up and one that counts, of three jobs
    assert not list(tmp_path.rglob("*.json"))


def test_costs_are_measured_once_per_machine_and_kept_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured: list[int] = []

    def measure(touched_bytes: int) -> tuple[Costs, bool]:
        measured.append(touched_bytes)
        return Costs(3, 2, 9, 5, 7), True

    monkeypatch.setattr(costs, "_measure", measure)
    first = costs._measured.__wrapped__(4096)

    again = costs._measured.__wrapped__(4096)
    other = costs._measured.__wrapped__(8192)

    assert first == again == other == Costs(3, 2, 9, 5, 7)
    assert measured == [4096, 8192]
    (kept,) = (tmp_path / "reprise" / "costs").glob("*.json")

    kept.write_text('{"4096": {"op_ns": -3}, "8192": 7}')
    assert costs._measured.__wrapped__(4096) == first
    kept.write_text("no JSON")
    assert costs._measured.__wrapped__(8192) == first
    assert measured == [4096, 8192, 4096, 8192]


def test_a_cache_that_cannot_be_written_only_costs_another_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(costs, "_measure", lambda _: (Costs(3, 2, 9, 5, 7), True))

    assert costs._measured.__wrapped__(4096) == Costs(3, 2, 9, 5, 7)
