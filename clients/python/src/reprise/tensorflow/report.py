# SPDX-License-Identifier: Apache-2.0
"""Compares prediction and measurement of one step of a rewritten graph, run under `FULL_TRACE`.

fetched, found = reprise.tensorflow.validate(session, [loss, *grads], feed_dict)
print(found.sentence)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_percent
from reprise.plan import report_step
from reprise.tensorflow.gradients import Applied, applied_to, graph_of
from reprise.tensorflow.trace import peak_bytes, run_traced

__all__ = ["Validation", "reported", "step_number", "validate"]

_steps: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Validation:
    """Predicted and measured peak. Bytes include variables and inputs, as a budget does."""

    predicted_peak_bytes: int
    measured_peak_bytes: int
    # 0 for checkpoints, which have no budget.
    budget_bytes: int
    # Whether there is a prediction: not for checkpoints in a graph that leaves sizes open.
    predicted: bool = True

    @property
    def within(self) -> bool:
        """Whether the measured peak is within the budget."""
        return not self.budget_bytes or self.measured_peak_bytes <= self.budget_bytes

    @property
    def sentence(self) -> str:
        """Predicted peak, measured peak and budget in one sentence."""
        if not self.predicted:
            return (
                f"Measured {format_bytes(self.measured_peak_bytes)} above variables and inputs; "
                "not predicted, because the graph leaves sizes open (batch= gives them)."
            )
        off = self.measured_peak_bytes / max(1, self.predicted_peak_bytes) - 1
        text = (
            f"Predicted {format_bytes(self.predicted_peak_bytes)}, measured "
            f"{format_bytes(self.measured_peak_bytes)} ({format_percent(off, sign=True)})"
        )
        if not self.budget_bytes:
            return text + "."
        kept = "kept" if self.within else "not kept"
        return f"{text}: the budget of {format_bytes(self.budget_bytes)} was {kept}."


def validate(session: Any, fetches: Any, feed_dict: Any = None) -> tuple[Any, Validation]:
    """Runs a step as `session.run` does, traced, and compares its peak with the prediction. Returns
    the fetched values and the comparison. The step is also reported to the plan's run, for the page
    and `reprise show`. Run a step before it, because the first one allocates memory that stays.
    Raises RepriseError if the session's graph has no plan."""
    made = applied_to(graph_of(session, "validate"))
    if made is None:
        raise RepriseError("validate: no plan was applied to the graph that it runs")
    started = time.perf_counter_ns()
    fetched, metadata = run_traced(session, fetches, feed_dict)
    took = time.perf_counter_ns() - started
    measured = peak_bytes(metadata) + made.step.graph.static_bytes
    return fetched, reported(made, measured, took)


def reported(made: Applied, measured_bytes: int, step_ns: int) -> Validation:
    """Reports a measured step of a plan to its run. Returns the comparison with the prediction.
    `step_ns` is 0 if the time was not measured."""
    budget = 0
    if made.plan is not None:
        budget = made.plan.budget_bytes
        step = _steps[made.plan.plan_id] = _steps.get(made.plan.plan_id, -1) + 1
        report_step(
            made.plan,
            step=step,
            peak_bytes=measured_bytes,
            step_ns=step_ns,
            recomputed=made.copies,
            predicted_peak_bytes=made.peak_bytes,
        )
    return Validation(made.peak_bytes, measured_bytes, budget, made.predictable)


def step_number(plan_id: str) -> int:
    """Returns the number of the newest step that was reported for a plan; 0 if there is none."""
    return _steps.get(plan_id, 0)
