# SPDX-License-Identifier: Apache-2.0
"""What `reprise.report` returns: predicted against measured, of one model. Imports no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reprise.base.notebook import InNotebook
from reprise.torch.internals.entry import otherwise

if TYPE_CHECKING:
    from reprise.agent.received import Plan


@dataclass(frozen=True, slots=True)
class Report(InNotebook):
    """Predicted against measured. Zero: not known (yet).

    Predicted and measured figures are of the plan of the newest planned step; `over_budget_steps`
    are planned steps of the whole run, `unplanned_steps` those before the first plan and after the
    last, whose largest peak is `unplanned_peak_bytes`. `validated`: some step was planned, each of
    them kept its budget, the program never left its plan, and every check found equal bits.
    """

    stage: str
    why: str = ""
    budget: str | None = None
    budget_bytes: int = 0
    plan_id: str = ""
    base_peak_bytes: int = 0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    base_step_ns: int = 0
    predicted_step_ns: int = 0
    measured_step_ns: int = 0
    overhead_bound: float = 0.0
    planned_steps: int = 0
    mismatched_steps: int = 0
    over_budget_steps: int = 0
    unplanned_steps: int = 0
    unplanned_peak_bytes: int = 0
    unplanned_over_budget_steps: int = 0
    rungs: int = 0
    checks: int = 0
    failed_checks: int = 0
    gradients_equal: bool = False  # gradients were compared, and every check of them was equal
    values_equal: bool = False  # the same of values that were made again
    gradient_checks: int = 0  # of the checks, those that compared gradients; the others: values
    buffers_checked: int = 0  # in all checks: buffers that the step had written
    unchecked: str = ""  # why nothing has been checked yet
    host_bytes: int = 0  # that a planned step sends to host memory
    in_python: str = ""  # why the plan runs in Python alone, with more overhead per step
    verify_extra_bytes: int = 0
    verify_peak_bytes: int = 0  # the peak of unplanned runs for a comparison of gradients
    validated: bool = False
    sentence: str = ""
    plan: Plan | None = None  # the one in force

    @property
    def predicted_bytes(self) -> int:
        """The peak that was predicted for the newest planned step."""
        return self.predicted_peak_bytes

    @property
    def measured_bytes(self) -> int:
        """The peak of the newest planned step."""
        return self.measured_peak_bytes

    @property
    def measured_by(self) -> str:
        """Who measured the peak; empty if nobody has."""
        return "the allocator" if self.measured_peak_bytes else ""

    @property
    def bits(self) -> bool | None:
        """Whether every check found equal bits; None: none was made."""
        return self.failed_checks == 0 if self.checks else None

    @property
    def overhead(self) -> float | None:
        """Extra time of the plan, predicted, as a fraction of a step without one."""
        if self.plan is None:
            return None
        if self.base_step_ns and self.predicted_step_ns:  # with the time of the executor itself
            return self.predicted_step_ns / self.base_step_ns - 1
        return self.plan.overhead

    @otherwise(lambda self: self.sentence)
    def __str__(self) -> str:
        return self.sentence
