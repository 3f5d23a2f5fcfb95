# SPDX-License-Identifier: Apache-2.0
"""Memory that threads of a collective library free late.

    late = LateFrees(job)
    late.begin(rung)        # a planned step begins, on this thread
    late.left()             # the step has left its plan
    late.end()              # it is over

Gloo's worker threads hold the tensors of a collective, and copies of its own, until they run again
after the program has waited for it: on a loaded machine some milliseconds later, when the program
may already be at its peak. So in a planned step of several ranks an allocation that would exceed
the predicted peak waits until they have freed them, 1 s a step in total (Meter.wait_above). No
collective is added or moved. If that time is used up, the excess is not theirs: then only the
budget is the limit for this plan, and after three such steps nothing waits under it any more.
"""

from __future__ import annotations

from collections import Counter

from reprise.torch.internals.distributed import several_ranks
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung

_STEPS = 3  # in which waiting did not help


class LateFrees:
    """Waits in the planned steps of one session."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._plan = ""  # of the step under way, its id
        self._in_vain: Counter[str] = Counter()  # steps, by plan
        self._waits = False

    def begin(self, rung: Rung) -> None:
        """Begins a planned step: its allocations wait from now on, if other threads may hold
        memory that a collective has used."""
        plan, job = rung.plan, self._job
        if plan is None or not rung.covers(job.step.key) or not several_ranks():
            return
        self._plan = plan.plan_id
        in_vain = self._in_vain[self._plan]
        if in_vain >= _STEPS:
            return
        # What the program holds by now and did not hold when the step was captured.
        beside = rung.beside(job.step.live_begin, job.step.missing)
        most = plan.budget_bytes if in_vain and not rung.exceeds else plan.peak_bytes
        most += max(0, beside - rung.held_bytes)
        if not rung.exceeds and (job.budget is None or not job.budget.is_share):
            most = min(most, plan.budget_bytes)
        job.meter.wait_above(most)
        self._waits = True

    def left(self) -> None:
        """Ends the waiting: the step keeps everything from now on."""
        if self._waits:
            self._waits = False
            self._job.meter.wait_above(None)

    def end(self) -> bool:
        """Ends the waiting with the step. Returns whether the step has waited in vain: its time
        says nothing about its plan."""
        if not self._waits:
            return False
        self._waits = False
        in_vain = self._job.meter.wait_above(None)
        self._in_vain[self._plan] += in_vain
        return in_vain
