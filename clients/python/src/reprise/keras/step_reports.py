# SPDX-License-Identifier: Apache-2.0
"""Reports the steps of `fit` to the run of their plan."""

from __future__ import annotations

import contextlib

from reprise.base.errors import RepriseError
from reprise.plan import Plan, report_step
from reprise.plan.reporting import report_unchecked

__all__ = ["StepReports"]


class StepReports:
    """Counts and reports the steps of one model. If nobody takes the reports, it stops."""

    def __init__(self, unchecked: str) -> None:
        """Takes why no check compares gradients, for the verdict; empty if one does."""
        self._unchecked = unchecked
        self._step = 0
        self._told = ""
        self._taken = True

    @property
    def newest(self) -> int:
        """The number of the newest step; -1 before the first."""
        return self._step - 1

    def unchecked(self, plan: Plan, why: str) -> None:
        """Reports why no step under a plan is compared. Never raises."""
        with contextlib.suppress(RepriseError, OSError):
            if self._taken:
                report_unchecked(plan, why)

    def step(
        self,
        plan: Plan | None,
        step_ns: int = 0,
        peak_bytes: int = 0,
        predicted_peak_bytes: int = 0,
    ) -> None:
        """Reports a step that has ended, under `plan` or without one; zero: not measured, or
        predicted as by the plan. Never raises."""
        number, self._step = self._step, self._step + 1
        if not self._taken or (plan is None and not self._told):
            return
        try:
            self._taken = report_step(
                plan,
                step=number,
                peak_bytes=peak_bytes,
                step_ns=step_ns,
                predicted_peak_bytes=predicted_peak_bytes,
                recomputed=len(plan.recomputed_ops) if plan else 0,
                wait=False,
            )
            if self._taken and plan is not None and plan.plan_id != self._told:
                if self._unchecked:
                    report_unchecked(plan, self._unchecked)
                self._told = plan.plan_id
        except (RepriseError, OSError):
            self._taken = False
