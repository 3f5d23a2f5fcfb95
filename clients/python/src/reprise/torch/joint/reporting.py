# SPDX-License-Identifier: Apache-2.0
"""What a compiled job reports of its steps.

told = Reporting(job)
told.applied(plan)               # as it is predicted for this job
told.begin(number)               # a step
told.ended(peak, plan, quiet, budget_bytes, predicted)
"""

from __future__ import annotations

import time
from dataclasses import replace

from reprise.agent import abi
from reprise.plan import Plan
from reprise.torch.training.job import Job

_KEY = "compiled"  # inputs of other sizes are other graphs


class Reporting:
    """Counts and reports the steps and plans of one compiled job."""

    def __init__(self, job: Job) -> None:
        self._agent, self._measured, self._record = job.agent, job.measured, job.record
        self._number = self._begin_ns = self._compared_ns = self._compared_bytes = 0
        self._applied: tuple[int, int] | None = None  # plan, predicted peak

    def begin(self, number: int) -> None:
        """Notes that a step begins."""
        self._number = number
        self._agent.step(number)
        self._begin_ns = time.perf_counter_ns()

    def ended(
        self,
        peak: int,
        plan: Plan | None,
        quiet: bool,
        budget_bytes: int,
        predicted: int,
        recomputed: int,
    ) -> None:
        """Reports a step that is over. `plan`: the one that it ran under; `quiet`: nothing was
        compiled in it; `predicted`: its peak in bytes, 0 if not known; `recomputed`: ops that ran
        again under the plan.

        A step that also compiles takes memory that no other step takes: its peak is not known.
        One that was compared has run with the plan and without: it is reported as one without, at
        the peak of both. Where no step without a plan was measured, times are compared with
        nothing."""
        step_ns = time.perf_counter_ns() - self._begin_ns - self._compared_ns
        compared, self._compared_ns, self._compared_bytes = self._compared_bytes, 0, 0
        flags = 0 if quiet and not compared and self._measured.base_step_ns else abi.STEP_WINDOW
        if not quiet or compared:
            plan, peak = None, max(compared, peak if quiet else 0)
            self._measured.without_plan(peak)
        elif plan is None:
            self._measured.plain(_KEY, peak)(step_ns, 0)
            self._measured.without_plan(peak)
        else:
            # The planner may have been asked for less, to leave room for what no graph shows.
            plan = replace(plan, budget_bytes=budget_bytes)
            flags |= abi.STEP_PLANNED
            self.applied(replace(plan, peak_bytes=predicted or plan.peak_bytes))
        self._record.step(
            self._number,
            step_ns=step_ns,
            peak_bytes=peak,
            flags=flags,
            plan=plan,
            recomputed=0 if plan is None else recomputed,
        )

    def applied(self, plan: Plan) -> None:
        """Reports that the next steps run under a plan, at `plan.peak_bytes`, if that is new."""
        now = (plan.plan_number, plan.peak_bytes)
        if now != self._applied:
            self._applied = now
            self._record.applied(plan, 0, self._measured.base_step_ns)

    def compared(self, peak: int, took_ns: int) -> None:
        """Notes the peak and the time of a comparison."""
        self._compared_ns += took_ns
        self._compared_bytes = peak
        self._measured.verify_peak_bytes = max(self._measured.verify_peak_bytes, peak)
