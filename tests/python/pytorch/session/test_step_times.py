"""How long steps take: known at once on a host, and on a GPU without waiting for it."""

from __future__ import annotations

import pytest
import torch

from reprise.torch.meter.step_times import MOST_UNREAD, StepTimes
from reprise.torch.training.measure import Measured


class Device:
    """A fake GPU that has passed its first `ran` events."""

    def __init__(self) -> None:
        self.ran = 0  # events that it has passed
        self.recorded = 0
        self.waited = 0

    def event(self, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at = 0

    def record(self, stream: object) -> None:
        self._device.recorded += 1
        self.at = self._device.recorded

    def query(self) -> bool:
        return self.at <= self._device.ran

    def synchronize(self) -> None:
        if not self.query():
            self._device.waited += 1
            self._device.ran = self.at

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return 2.0 * (end.at - self.at)  # ms


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return made


def test_steps_on_a_gpu_are_reported_in_order_without_waiting(device):
    times, told = StepTimes(torch.device("cuda:0")), []

    for number in range(3):
        times.read()
        times.begin()
        if number == 1:
            times.leave_out(500_000)
        times.end()
        times.tell(lambda step_ns, work_ns, n=number: told.append((n, step_ns, work_ns)))
        device.ran = max(0, device.recorded - 3)  # a step and a half behind

    assert told == []
    times.read()
    assert told == [(0, 2_000_000, 2_000_000)]
    assert device.waited == 0
    times.read(wait=True)
    assert [n for n, *_ in told] == [0, 1, 2]
    assert told[1] == (1, 1_500_000, 1_500_000)


def test_the_host_waits_for_a_gpu_that_is_too_far_behind(device):
    times = StepTimes(torch.device("cuda:0"))

    for _ in range(MOST_UNREAD + 1):
        times.begin()
        times.end()
        times.tell(lambda step_ns, work_ns: None)

    assert device.waited == 1


def test_a_step_on_the_host_is_reported_at_once_without_time_that_was_not_its_own():
    times, told = StepTimes(torch.device("cpu")), []

    times.begin()
    times.end()
    times.tell(lambda *ns: told.append(ns))
    times.begin()
    times.leave_out(10**15)
    times.end()
    times.tell(lambda *ns: told.append(ns))

    assert len(told) == 2
    assert min(told[0]) >= 0
    assert max(told[1]) < 0


def test_memory_that_only_the_first_step_of_a_shape_takes_is_not_in_the_base():
    measured = Measured()

    measured.plain("a", 900)(70, 70)
    assert measured.base("a") == (900, 0)  # better than nothing; its time is no step's
    measured.plain("a", 400)(30, 30)
    measured.plain("a", 300)(40, 40)
    measured.plain("b", 800)(50, 50)

    assert measured.base("a") == (400, 35)
    assert measured.base("b") == (800, 50)


def test_a_step_time_that_arrives_after_a_new_plan_belongs_to_the_old_one():
    measured = Measured()
    late = measured.planned(1, 100, representative=True, covered=True)

    measured.new_plan(1)
    measured.shown = "a"
    late(77, 77)

    assert (measured.under(1).step_ns, measured.planned_steps) == (0, 0)
