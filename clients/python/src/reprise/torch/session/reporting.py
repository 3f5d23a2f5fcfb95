# SPDX-License-Identifier: Apache-2.0
"""What a compiled job measured: kept for its report, and told to the collector.

told = Reporting(agent, budget)
told.begin(number)               # a step
told.ended(peak, plan, quiet, budget_bytes)
told.checked(plan, result); told.stopped(plan, why)
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from reprise import abi
from reprise.agent import Agent
from reprise.plan import Plan
from reprise.torch.check.result import CheckResult
from reprise.torch.joint.told import Told
from reprise.torch.session.measure import Measured
from reprise.torch.session.record import Record
from reprise.torch.training.loop import end_agent

__all__ = ["Reporting"]

_KEY = "compiled"  # inputs of other sizes are other graphs


class Reporting(Told):
    """Reports the steps and plans of one compiled job."""

    def __init__(self, agent: Agent, budget: str) -> None:
        self._agent: Agent | None = agent
        self.measured = Measured(budget)
        self.record = Record(agent)
        self._number = self._begin_ns = self._compared_ns = self._compared_bytes = 0
        self._applied: tuple[int, int] | None = None  # plan, predicted peak
        self._pid = os.getpid()

    def begin(self, number: int) -> None:
        """Notes that a step begins."""
        self._number = number
        if self._agent is not None:
            self._agent.step(number)
        self._begin_ns = time.perf_counter_ns()

    def ended(
        self, peak: int, plan: Plan | None, quiet: bool, budget_bytes: int, predicted: int
    ) -> None:
        """Reports a step that is over. One that also compiles takes memory that no other step
        takes: its peak is not known. One that was compared has run with the plan and without: it
        is reported as one without, at the peak of both. Where no step without a plan was
        measured, times are compared with nothing."""
        step_ns = time.perf_counter_ns() - self._begin_ns - self._compared_ns
        compared, self._compared_ns, self._compared_bytes = self._compared_bytes, 0, 0
        flags = 0 if quiet and not compared and self.measured.base_step_ns else abi.STEP_WINDOW
        if not quiet or compared:
            plan, peak = None, max(compared, peak if quiet else 0)
        elif plan is None:
            self.measured.plain(_KEY, peak)(step_ns, 0)
        else:
            # The planner may have been asked for less, to leave room for what no graph shows.
            plan = replace(plan, budget_bytes=budget_bytes)
            flags |= abi.STEP_PLANNED
            now = (plan.plan_number, predicted)
            if now != self._applied:
                self._applied = now
                expected = replace(plan, peak_bytes=predicted or plan.peak_bytes)
                self.record.applied(expected, 0, self.measured.base_step_ns)
        self.record.step(self._number, step_ns=step_ns, peak_bytes=peak, flags=flags, plan=plan)

    def compared(self, peak: int, own: int, took_ns: int) -> None:
        """Notes the peak and the time of a comparison. `own`: the part of the peak that the
        budget is about."""
        self._compared_ns += took_ns
        self._compared_bytes = own
        self.measured.verify_peak_bytes = max(self.measured.verify_peak_bytes, peak)

    def checked(self, plan: Plan, result: CheckResult) -> None:
        """Takes what a comparison of the gradients under a plan found."""
        self.measured.checked(result)
        self.record.check(self._number, plan, result)

    def unchecked(self, plan: Plan, why: str) -> None:
        """Reports that a comparison was due and not made, and why."""
        self.record.unchecked(plan, why)

    def stopped(self, plan: Plan | None, why: str) -> None:
        """Reports that training continues without the plan."""
        if plan is None:
            self.record.without(why)
        else:
            self.record.withdrawn(plan, why)

    def close(self) -> None:
        """Ends the reports of this job; the last one ends the agent's session."""
        agent, self._agent = self._agent, None
        if agent is not None:
            end_agent(agent, self.record.failed, self._pid)
