# SPDX-License-Identifier: Apache-2.0
"""Models that are trained in the same steps are planned as one.

    together.begins()        # a step of this model begins
    together.captured()      # one has ended that was captured
    together.ended()         # any other has; returns whether models are to be planned with it
    together.alike()         # the jobs of those models; session.py makes one session of all
    together.planned         # some other, in the same steps, runs under a plan
    together.holds()         # this model's first plan waits until the others are captured

A coarse and a fine net in one loop each hold memory when the other peaks. Planned one by one, each
would take the other's for memory that stays, and a capture of one makes the other leave its plan.
So sessions with one budget whose steps overlap become one session of all their models: one graph,
one share of one peak, one plan (job/stages.py). Models with different budgets stay apart. They are
captured before any of them is planned, and later only where that throws no other off its plan.
"""

from __future__ import annotations

import itertools
import weakref

from reprise.torch.internals.distributed import several_ranks
from reprise.torch.job.job import EagerJob
from reprise.torch.policy.state import Stage
from reprise.torch.training.loop import open_loops

# Steps in a row that overlap with steps of another model, after which they are trained together: a
# model that steps now and then would make one long step of many.
IN_A_ROW = 2
# Steps for which a plan waits for the captures of other models.
HELD = 8

_ticks = itertools.count(1)
_all: weakref.WeakSet[Together] = weakref.WeakSet()


class Together:
    """Knows the models whose steps overlap with those of one session."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._began = self._ended = 0
        self._alive = 0  # bytes, when the last step ended
        self._held = 0
        self._in_a_row: weakref.WeakKeyDictionary[Together, int] = weakref.WeakKeyDictionary()
        _all.add(self)

    def begins(self) -> None:
        """Notes that a step begins."""
        self._began = next(_ticks)

    def captured(self) -> None:
        """Notes that a step has ended that was captured."""
        self._ended = next(_ticks)

    def ended(self) -> bool:
        """Notes that a step has ended; returns whether this model is to be planned with others."""
        self._ended = next(_ticks)
        if len(open_loops) == 1:
            return False
        for other in self._others():
            step = other._job.step
            overlaps = step.ended and (step.under_way or other._ended > self._began)
            self._in_a_row[other] = self._in_a_row.get(other, 0) + 1 if overlaps else 0
        # Where least is alive, no graph of another model waits for its backward: all begin anew.
        self._alive = self._job.meter.live()
        alike = self._alike()
        return bool(alike) and all(self._alive <= other._alive for other in alike)

    def alike(self) -> list[EagerJob]:
        """Returns the other jobs that this one can be planned with."""
        return [other._job for other in self._alike()]

    @property
    def planned(self) -> bool:
        """Whether another model that is trained in the same steps runs under a plan."""
        return any(other._job.plans.handles for other in self._overlapping())

    def holds(self) -> bool:
        """Returns whether the first plan of this model waits, because another model in the same
        steps is still to be captured as it is."""
        early = (Stage.WARMUP, Stage.CAPTURE)
        waits = any(other._job.stage in early for other in self._overlapping())
        self._held += waits
        return waits and self._held <= HELD

    def _others(self) -> list[Together]:
        """Returns those of the other jobs that have a budget and have not ended."""
        going_on = {id(loop.job) for loop in tuple(open_loops)}
        return [
            other
            for other in _all
            if other is not self
            and id(other._job) in going_on
            and other._job.budget is not None
            and not other._job.broken
        ]

    def _overlapping(self) -> list[Together]:
        """Returns those whose steps overlap with the last steps of this one."""
        return [
            other
            for other in self._others()
            if max(self._in_a_row.get(other, 0), other._in_a_row.get(self, 0)) >= IN_A_ROW
        ]

    def _alike(self) -> list[Together]:
        job = self._job
        return [
            other
            for other in self._overlapping()
            if self._may_join()
            and other._may_join()
            and other._job.budget == job.budget
            and other._job.device == job.device
        ]

    def _may_join(self) -> bool:
        job = self._job
        can = job.hand_over is not None and job.stage is not Stage.PLAIN
        return can and not several_ranks()
