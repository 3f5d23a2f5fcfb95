# SPDX-License-Identifier: Apache-2.0
"""Who is told of the steps of a compiled job: here nobody (session/reporting.py: the agent)."""

from __future__ import annotations

from reprise.plan import Plan
from reprise.torch.check.result import CheckResult

__all__ = ["Told"]


class Told:
    """What a compiled job tells about its steps and plans."""

    def begin(self, number: int) -> None:
        """Notes that a step begins, given its number."""

    def ended(
        self, peak: int, plan: Plan | None, quiet: bool, budget_bytes: int, predicted: int
    ) -> None:
        """Notes that a step is over. `plan`: the one that it ran under; `quiet`: nothing was
        compiled in it; `predicted`: its peak, 0 if not known."""

    def compared(self, peak: int, own: int, took_ns: int) -> None:
        """Notes the peak and the time of a comparison. `own`: the part of the peak that the
        budget is about."""

    def checked(self, plan: Plan, result: CheckResult) -> None:
        """Takes what a comparison of the gradients under a plan found."""

    def unchecked(self, plan: Plan, why: str) -> None:
        """Notes that a comparison was due and not made, and why."""

    def stopped(self, plan: Plan | None, why: str) -> None:
        """Notes that training continues without the plan, and why."""

    def close(self) -> None:
        """Ends the reports, because the job ends."""
