# SPDX-License-Identifier: Apache-2.0
"""Who is told of the steps of a compiled job: here nobody (session/reporting.py: the agent)."""

from __future__ import annotations

from reprise.plan import Plan
from reprise.torch.check.result import CheckResult

__all__ = ["Told"]


class Told:
    """What a compiled job tells about its steps and plans."""

    def begin(self, number: int) -> None:
        """Called when a step begins."""

    def ended(
        self, peak: int, plan: Plan | None, quiet: bool, budget_bytes: int, predicted: int
    ) -> None:
        """It is over; `plan`: it ran under one; `quiet`: nothing was compiled in it;
        `predicted`: its peak, 0 where that is not known."""

    def compared(self, peak: int, own: int, took_ns: int) -> None:
        """A comparison took so much, at its peak; `own`: what of that the budget is about."""

    def checked(self, plan: Plan, result: CheckResult) -> None:
        """Takes what a comparison of the gradients under a plan found."""

    def unchecked(self, plan: Plan, why: str) -> None:
        """A comparison was due and not made."""

    def stopped(self, plan: Plan | None, why: str) -> None:
        """Called when training continues without the plan."""

    def close(self) -> None:
        """Called last, when the job ends."""
