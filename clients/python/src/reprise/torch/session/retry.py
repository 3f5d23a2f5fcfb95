# SPDX-License-Identifier: Apache-2.0
"""A budget that was refused is asked for again when the step has changed.

retry = Retry(job, together)  # acts on refusals, and on plain steps that end
retry.wants(key)              # may this step be captured?

A refusal is about the step that was captured. Layers that are unfrozen, a longer sequence, a buffer
that is gone make another one of it, which may have a plan. What tells is the peak of plain steps: a
few in a row with another one than any before the refusal. Where the budget is a share of the step,
a refusal says nothing of steps that need more: a few that peak higher, in a row or not, are enough
to capture one of them, beside what was refused. Each try costs a captured step, so each next one
waits longer, and there are not many. A plan of another model that is trained in the same steps
lowers their peak, too: that is no change, and while it holds no step is captured.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from reprise.base.units import format_bytes
from reprise.torch.job.job import EagerJob
from reprise.torch.planning.together import Together
from reprise.torch.policy.events import PlainStepEnded
from reprise.torch.policy.policy import Action

# Share of a peak by which another one differs.
CHANGED = 0.1
# Bytes by which it differs at least: less comes and goes with garbage.
LEAST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Step:
    """A plain step that has ended."""

    key: Hashable
    peak: int  # bytes
    before: int  # the highest peak that is nothing new
    event: PlainStepEnded


class Retry:
    """Asks again after a refusal in one session."""

    def __init__(self, job: EagerJob, together: Together) -> None:
        self._job = job
        self._together = together
        self._refused = False
        self._tries = 0
        self._in_a_row = 0
        # Peaks of plain steps as they were refused: lowest and highest, by input.
        self._known: dict[Hashable, tuple[int, int]] = {}
        self._new: dict[Hashable, tuple[int, int]] = {}
        # The highest step of which a share was refused; how many ended that peak higher; whether
        # one of them is to be captured.
        self._peak = self._higher = 0
        self._wants_higher = False
        job.carry_out(
            {
                Action.NOTE_REFUSAL: self._note_refusal,
                Action.LOOK_AT_REFUSAL: lambda peak: self._ended(job.step.key, peak),
                Action.REMEMBER_PEAK: lambda step: _widen(self._known, step.key, step.peak),
                Action.FORGET_NEW: self._forget_new,
                Action.REMEMBER_NEW: self._remember_new,
                Action.CAPTURE_HIGHER: self._capture_higher,
                Action.FORGET_REFUSAL: self._forget_refusal,
            }
        )

    def _note_refusal(self, peak: int) -> None:
        """Notes that the planner refused the budget for what the steps need. `peak`: that of the
        step that it was asked about."""
        self._refused, self._wants_higher = True, False
        self._peak = max(self._peak, peak)
        if not self._known:
            # No plain step came before it.
            _widen(self._known, self._job.step.key, peak)

    def wants(self, key: Hashable) -> bool:
        """Returns whether a step with this input may be captured: any, or one that peaks higher,
        as far as is known."""
        job = self._job
        if self._together.planned:
            job.say(
                "no step is captured for a plan: another model is trained under one in the same "
                "steps, and would leave it. Models with the same budget are planned as one"
            )
            return False
        known, _ = job.measured.base(key)
        return not (self._wants_higher and known) or self._is_higher(known)

    def _is_higher(self, peak: int) -> bool:
        return peak > self._peak + max(LEAST_BYTES, CHANGED * self._peak)

    def _ended(self, key: Hashable, peak: int) -> None:
        """Looks at the peak of a plain step, and may ask for a plan again."""
        job = self._job
        share = job.budget is not None and job.budget.is_share
        higher = self._higher + (share and self._peak > 0 and self._is_higher(peak))
        low, high = self._range(key)
        less, more = max(LEAST_BYTES, CHANGED * low), max(LEAST_BYTES, CHANGED * high)
        event = PlainStepEnded(
            was_refused=self._refused,
            tries=self._tries,
            is_new=not low - less <= peak <= high + more,
            new_in_a_row=self._in_a_row + 1,
            higher=higher,
            is_relieved=peak < low and self._together.planned,
        )
        job.happened(event, _Step(key, peak, high, event))

    def _forget_new(self, step: _Step) -> None:
        self._higher, self._in_a_row = step.event.higher, 0
        self._new.clear()

    def _remember_new(self, step: _Step) -> None:
        self._higher, self._in_a_row = step.event.higher, step.event.new_in_a_row
        _widen(self._new, step.key, step.peak)

    def _range(self, key: Hashable) -> tuple[int, int]:
        """Returns the lowest and the highest peak that is nothing new. For an input that was not
        seen before, nothing is new that is not higher than all peaks."""
        known = self._known.get(key)
        return known or (0, max((high for _, high in self._known.values()), default=0))

    def _capture_higher(self, _: _Step) -> None:
        """Has the next step captured that peaks higher than the one refused."""
        peak = max(high for _, high in self._known.values())
        self._tries += 1
        self._higher, self._wants_higher = 0, True
        self._job.say(
            f"steps peak at {format_bytes(peak)}, that whose budget was refused at "
            f"{format_bytes(self._peak)}: one of the higher ones is captured, and a plan asked for"
        )

    def _forget_refusal(self, step: _Step) -> None:
        self._tries += 1
        self._known, self._new = self._new, {}
        self._in_a_row, self._refused = 0, False
        self._peak = self._higher = 0
        self._job.say(
            "this step differs from the one whose budget was refused: it peaks at "
            f"{format_bytes(step.peak)} instead of {format_bytes(step.before)}. It is captured, "
            "and Reprise asks for a plan again"
        )


def _widen(peaks: dict[Hashable, tuple[int, int]], key: Hashable, peak: int) -> None:
    known = peaks.get(key)
    if known is not None:
        peaks[key] = min(known[0], peak), max(known[1], peak)
    elif len(peaks) < 64:
        peaks[key] = peak, peak
