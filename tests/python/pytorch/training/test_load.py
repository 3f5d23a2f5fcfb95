# SPDX-License-Identifier: Apache-2.0
"""Times of steps are compared only if they were measured under the same load."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reprise.agent import abi
from reprise.agent.agent import Agent
from reprise.agent.received import Plan
from reprise.torch.training import load
from reprise.torch.training.load import Load
from reprise.torch.training.record import Record

VERDICTS = Path(__file__).parents[3] / "fixtures/verdicts.json"
# Steps of 100 ns each.
STEP_NS = 100


class Clock:
    """What the system says of this thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread, self.time_ns, self.waited_ns = 1, 0, 0
        monkeypatch.setattr(
            load._Waits, "now", lambda _: (self.thread, self.time_ns, self.waited_ns)
        )

    def steps(self, of: Load, count: int, waits_ns: int, *, planned: bool) -> None:
        for _ in range(count):
            self.time_ns += STEP_NS
            self.waited_ns += waits_ns
            of.step(STEP_NS, planned=planned)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_base_that_was_measured_on_a_busier_machine_is_not_compared(clock: Clock) -> None:
    busy = Load()
    clock.steps(busy, 5, 60, planned=False)
    clock.steps(busy, 5, 2, planned=True)

    assert busy.difference() == (
        "this process waited for a processor 60 % of the time when the base was measured, "
        "2 % under the plan"
    )


def test_steps_that_wait_equally_are_compared(clock: Clock) -> None:
    both = Load()
    assert both.difference() == ""
    clock.steps(both, 5, 60, planned=False)
    assert both.difference() == ""
    clock.steps(both, 5, 58, planned=True)
    assert both.difference() == ""


def test_times_are_compared_again_once_the_load_is_that_of_the_base(clock: Clock) -> None:
    waned = Load()
    clock.steps(waned, 5, 2, planned=False)
    clock.steps(waned, 5, 60, planned=True)
    assert waned.difference()

    clock.steps(waned, 6, 2, planned=True)

    assert waned.difference() == ""


def test_what_is_no_step_of_one_thread_says_nothing(clock: Clock) -> None:
    odd = Load()
    clock.steps(odd, 5, 2, planned=False)
    clock.steps(odd, 1, 2, planned=True)
    clock.time_ns += 1000 * STEP_NS  # waits for its plan
    clock.waited_ns += 500 * STEP_NS
    clock.steps(odd, 1, 60, planned=True)
    clock.thread += 1
    clock.steps(odd, 1, 60, planned=True)

    assert odd.difference() == ""


def test_of_a_job_without_a_plain_step_the_captured_one_is_the_base(clock: Clock) -> None:
    record = Record(Agent(None, "", ""), on_host=True)
    plan = Plan.from_message(json.loads(VERDICTS.read_text())["cases"][0]["plan"])

    def step(waits_ns: int, flags: int, *, is_base: bool = False) -> None:
        clock.time_ns += STEP_NS
        clock.waited_ns += waits_ns
        record.step(1, step_ns=STEP_NS, peak_bytes=1, flags=flags, plan=plan, is_base=is_base)

    for _ in range(3):
        step(70, abi.STEP_PLANNED)  # under a plan that was made from shapes
    step(10, abi.STEP_PLANNED | abi.STEP_WINDOW, is_base=True)
    for _ in range(3):
        step(70, abi.STEP_PLANNED)

    assert "10 % of the time when the base was measured" in record.verdict().sentence


def test_steps_that_take_very_different_times_are_not_compared(clock: Clock) -> None:
    uneven = Load()
    clock.steps(uneven, 5, 2, planned=False)
    for step_ns in (1_000_000, 4_000_000) * 4:
        uneven.step(step_ns, planned=True)

    assert uneven.difference() == (
        "of the steps under the plan a quarter took less than 1 ms, and a quarter more than 4 ms"
    )


@pytest.mark.parametrize(
    ("takes", "says"),
    [
        (0.8, "the same ops take 20.0 % less time than when the base was measured"),
        (1.25, "the same ops take 25.0 % more time than when the base was measured"),
        (1.03, ""),
    ],
)
def test_steps_on_a_machine_that_became_quicker_or_slower_are_not_compared(
    takes: float, says: str
) -> None:
    record = Record(Agent(None, "", ""), on_host=True)
    plan = Plan.from_message(json.loads(VERDICTS.read_text())["cases"][0]["plan"])
    record.same_ops(1000, int(1000 * takes))
    record.step(1, step_ns=STEP_NS, peak_bytes=1, flags=abi.STEP_PLANNED, plan=plan)

    assert says in record.verdict().sentence
    assert ("not comparable" in record.verdict().sentence) == bool(says)


def test_each_thread_reads_how_long_it_waited_itself_and_no_file_stays_open() -> None:
    waits = load._Waits()
    if waits.now() is None:
        pytest.skip("this system does not tell how long a thread waits")
    del waits
    before = os.listdir("/proc/self/fd")
    waits = load._Waits()

    with ThreadPoolExecutor(1) as pool:
        found = [waits.now(), pool.submit(waits.now).result(), waits.now()]

    assert None not in found
    assert [one[0] == threading.get_ident() for one in found if one] == [True, False, True]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del waits
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_the_program_opened_under_the_number_of_ours_stays_open(tmp_path: Path) -> None:
    waits = load._Waits()
    assert waits.now() is not None
    os.close(waits._file)  # as a program does that becomes a daemon
    own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    assert own == waits._file

    assert waits.now() is None
    del waits

    assert os.write(own, b"still there") == 11
    os.close(own)
