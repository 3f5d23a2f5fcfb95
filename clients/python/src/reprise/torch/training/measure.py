# SPDX-License-Identifier: Apache-2.0
"""What a session measured: plain steps by the shape of their input, planned ones by their rung."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

from reprise.torch.check.result import CheckResult
from reprise.torch.meter.step_times import Then

# Different peaks of plain steps that are remembered per input, which bounds the memory.
DIFFERENT = 64
# Different peaks of steps without a plan that are counted apart; others count with the next higher.
APART = 256
# Share by which peaks of one program differ at most, because of the allocator or a library.
ALIKE = 0.01
# Share by which the peak of another kind of step is higher.
OTHER = 0.1
# Standard deviations above the mean that peaks which the data decides seldom exceed; more where
# only a few steps tell how far they spread.
DEVIATIONS = 4


def _nobody(step_ns: int, work_ns: int) -> None:
    """Ignores times that are not those of other steps."""


@dataclass(slots=True)
class Steps:
    """Steps of one kind: how many, their peak, the times of the last ones."""

    count: int = 0
    peak_bytes: int = 0
    times_ns: list[int] = field(default_factory=list)
    work_ns: list[int] = field(default_factory=list)
    covered_peak_bytes: int = 0  # of those with inputs that the plan is for
    peaks: set[int] = field(default_factory=set)  # the first ones that differ
    _mean: float = 0.0
    _squares: float = 0.0  # of the distances from the mean, summed as Welford does

    def add(self, peak: int) -> None:
        """Counts a step with this peak, in bytes."""
        self.count += 1
        distance = peak - self._mean
        self._mean += distance / self.count
        self._squares += distance * (peak - self._mean)
        self.peak_bytes = max(self.peak_bytes, peak)
        if len(self.peaks) < DIFFERENT:
            self.peaks.add(peak)

    def took(self, step_ns: int, work_ns: int) -> None:
        """Takes the time of a step, which on a GPU is known later."""
        self.times_ns.append(step_ns)
        self.work_ns.append(work_ns or step_ns)
        if len(self.times_ns) > 101:
            del self.times_ns[0], self.work_ns[0]

    @property
    def likely_bytes(self) -> int:
        """The peak that one of many more such steps will hardly exceed; 0 if there are none."""
        deviation = math.sqrt(self._squares / max(1, self.count - 1))
        far = DEVIATIONS * (1 + 2 / max(1, self.count)) * deviation
        return max(self.peak_bytes, math.ceil(self._mean + far))

    @property
    def step_ns(self) -> int:
        """The median time of the last steps; 0 if there are none."""
        return int(median(self.times_ns)) if self.times_ns else 0

    @property
    def stretched(self) -> float:
        """The median wall time of these steps by their least processor time, which other
        processes only make longer; at least 1, or 0 if there are none."""
        return max(1.0, self.step_ns / max(1, min(self.work_ns))) if self.work_ns else 0.0

    @property
    def differ(self) -> bool:
        """Whether they peaked differently: they are of several kinds."""
        return max(self.peaks, default=0) > min(self.peaks, default=0) * (1 + OTHER)


_NONE = Steps()  # what is known of steps of a kind that has not come


@dataclass(slots=True)
class Measured:
    """Figures of one model, kept small however long it trains."""

    plain_steps: int = 0
    mismatched_steps: int = 0
    buffers_checked: int = 0
    verify_extra_bytes: int = 0
    verify_peak_bytes: int = 0  # the highest of unplanned runs for a comparison
    smallest_budget: int | None = None
    in_python: str = ""  # why the plan of the newest planned step runs in Python
    # Of the device, that the allocator needed beyond the bytes asked for.
    beyond_bytes: int = 0
    unplanned: Counter[int] = field(default_factory=Counter)  # peaks of steps without a plan
    _plain: dict[Hashable, Steps] = field(default_factory=dict)
    _planned: dict[int, Steps] = field(default_factory=dict)
    shown: Hashable = None  # the input that the figures without an argument are about

    def plain(self, key: Hashable, peak: int) -> Then:
        """Counts a step without a plan, and returns a function that takes its times. The first
        step of all pays for what is set up once, and has no optimizer state yet: it tells
        nothing about the time of a step. The first one with an input of this shape may take
        memory that is needed once, as libraries do that try their algorithms: it tells nothing
        about the peak of the next ones."""
        self.plain_steps += 1
        if len(self._plain) >= 64 and key not in self._plain:
            return _nobody
        steps = self._plain.get(key) or self._plain.setdefault(key, Steps())
        if steps.count == 1:
            steps.peak_bytes = 0
            steps.peaks.clear()
        steps.add(peak)
        if not self._planned:
            self.shown = key
        return steps.took if self.plain_steps > 1 else _nobody

    def without_plan(self, peak: int) -> None:
        """Counts the peak of a step that had no plan, however it ran."""
        if len(self.unplanned) >= APART and peak not in self.unplanned:
            peak = min((p for p in self.unplanned if p >= peak), default=max(self.unplanned))
        self.unplanned[peak] += 1

    def unplanned_over(self, budget_bytes: int) -> int:
        """Returns how many steps without a plan peaked above a budget; 0 also if that is 0: it is
        not known yet."""
        return sum(n for peak, n in self.unplanned.items() if budget_bytes and peak > budget_bytes)

    def planned(self, rung: int, peak: int, *, representative: bool, covered: bool) -> Then:
        """Counts a step under a plan, and returns a function that takes its times.
        `representative`: nothing else was going on that takes time; `covered`: the plan is for
        an input as large."""
        steps = self._planned.get(rung) or self._planned.setdefault(rung, Steps())
        steps.add(peak)
        if covered:
            steps.covered_peak_bytes = max(steps.covered_peak_bytes, peak)
        return steps.took if representative else _nobody

    def raise_base(self, key: Hashable, peak: int) -> None:
        """Raises what a step with this input, which has changed since, needs without a plan."""
        if key in self._plain:
            self._plain[key].peak_bytes = max(self._plain[key].peak_bytes, peak)
            self._plain[key].peaks.add(peak)

    def take_like(self, key: Hashable, peak: int, several: bool) -> None:
        """Takes the captured peak as that of plain steps with this input. If there are `several`
        programs with this input, or plain steps peaked differently, the peak that comes closest
        to it counts from here on, or it alone if none does: then no time is known of them."""
        steps = self._plain.get(key)
        if steps is None:
            return
        peaks = steps.peaks or {steps.peak_bytes}  # of a captured step, if none was measured
        if not several and max(peaks) - min(peaks) <= ALIKE * peak:
            return
        closest = min(peaks, key=lambda known: (abs(known - peak), -known))
        alike = abs(closest - peak) <= ALIKE * peak
        steps.peak_bytes = closest if alike else peak
        if several and not alike:
            steps.times_ns.clear()
            steps.work_ns.clear()

    def begin_again(self) -> None:
        """Forgets the steps so far: those that come are others."""
        self._plain.clear()

    def under(self, rung: int) -> Steps:
        """Returns what is known of the steps of its present plan, to read."""
        return self._planned.get(rung, _NONE)

    def like(self, key: Hashable) -> Steps:
        """Returns what is known of plain steps with this input, to read."""
        return self._plain.get(key, _NONE)

    def new_plan(self, rung: int) -> None:
        """Figures of the plan before are not those of this one."""
        self._planned[rung] = Steps()

    def checked(self, result: CheckResult) -> None:
        """Notes what a check of values or of gradients looked at, and what it took."""
        self.buffers_checked += result.buffers
        self.verify_extra_bytes = max(self.verify_extra_bytes, result.extra_bytes)

    def base(self, key: Hashable) -> tuple[int, int]:
        """Returns peak and time of plain steps with this input; zeros if none was seen."""
        steps = self.like(key)
        return steps.peak_bytes, steps.step_ns

    @property
    def largest_peak_bytes(self) -> int:
        """The highest peak of plain steps with any input; 0 if none was seen."""
        return max((steps.peak_bytes for steps in self._plain.values()), default=0)

    def set_base(self, key: Hashable, peak: int, step_ns: int) -> None:
        """Sets what is known of plain steps with an input of which none was measured, or none of
        their present program."""
        steps = self._plain.setdefault(key, Steps(1, peak))
        if not steps.times_ns:
            steps.times_ns.append(step_ns)

    @property
    def base_peak_bytes(self) -> int:
        """The peak of a plain step with the input of the current plan; 0 if unknown."""
        return self.base(self.shown)[0]

    @property
    def base_step_ns(self) -> int:
        """The time of a plain step with the input of the current plan; 0 if unknown."""
        return self.base(self.shown)[1]

    @property
    def planned_steps(self) -> int:
        """The number of steps under the current plans."""
        return self.steps_under(sketched=False) + self.steps_under(sketched=True)

    def steps_under(self, *, sketched: bool) -> int:
        """Returns the number of steps under the current plans made from shapes, whose rungs have
        numbers below zero, or under the others."""
        count = 0
        for rung, steps in self._planned.items():
            if (rung < 0) is sketched:
                count += steps.count
        return count
