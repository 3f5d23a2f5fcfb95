# SPDX-License-Identifier: Apache-2.0
"""Times of steps are compared only if they were measured under the same load."""

from __future__ import annotations

import pytest

from reprise.torch.training import load
from reprise.torch.training.load import Load

# Steps of 100 ns each.
STEP_NS = 100


class Clock:
    """What the system says of this thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread, self.time_ns, self.waited_ns = 1, 0, 0
        monkeypatch.setattr(load, "_now", lambda: (self.thread, self.time_ns, self.waited_ns))

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
        "this process waited for a processor 60 % of the time without a plan, "
        "2 % of the time under it"
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
