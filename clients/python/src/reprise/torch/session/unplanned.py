# SPDX-License-Identifier: Apache-2.0
"""Steps without a plan that peak above the budget, said once.

unplanned.say(planned=True)   # the first plan is here: what ran before it
unplanned.over_budget         # how many there were
"""

from __future__ import annotations

import os

from reprise.base.units import format_bytes
from reprise.torch.job.job import EagerJob

# Bytes of a peak below which it is not said what malloc keeps of it.
MUCH = 64 << 20


class Unplanned:
    """Says how many unplanned steps of one session exceed the budget."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job

    @property
    def over_budget(self) -> int:
        """The number of steps without a plan that peaked above the budget; 0 also if it is not
        known yet."""
        return self._job.measured.unplanned_over(self._budget_bytes())

    def say(self, planned: bool) -> None:
        """Says how many such steps there were, before the first plan or in a job that gets none."""
        count, budget = self.over_budget, self._budget_bytes()
        if not count:
            return
        steps = "1 step" if count == 1 else f"{count} steps"
        when = "before the plan" if planned else "without a plan"
        peak = max(self._job.measured.unplanned)
        self._job.say(
            f"{steps} ran {when} and peaked at {format_bytes(peak)}, over the budget "
            f"of {format_bytes(budget)}{'' if planned else ', as the next will'}"
            + (self._kept_by_malloc() if planned else "")
        )

    def _budget_bytes(self) -> int:
        """Returns the budget in bytes as the planner reads it; a share is of what is not alive
        during the whole step. 0 if not known."""
        plans, budget = self._job.plans, self._job.budget
        if plans.plan is not None and plans.plan.budget_bytes:
            return plans.plan.budget_bytes
        graph = plans.graph
        if budget is None or (budget.is_share and graph is None):
            return 0
        static, peak = (graph.static_bytes, graph.measured_peak_bytes) if graph else (0, 0)
        return budget.of_step(static, peak) or 0

    def _kept_by_malloc(self) -> str:
        """Says what the process itself holds after such steps, where it is not what its tensors
        need; "" where that is little, or malloc was told to give large blocks back."""
        told = "MALLOC_MMAP_THRESHOLD_" in os.environ
        told = told or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", "")
        if self._job.device.type != "cpu" or told or max(self._job.measured.unplanned) < MUCH:
            return ""
        return (
            ". The process's own memory hardly falls from there: malloc keeps what is freed "
            "(MALLOC_MMAP_THRESHOLD_=1000000 gives large blocks back)"
        )
