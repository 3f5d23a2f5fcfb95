# SPDX-License-Identifier: Apache-2.0
"""Scripts around one habit each (habits.py) with the real daemon and planner: the budget holds in
every step that is as captured, or is refused, and no bit changes. REPRISE_HABITS=all runs each of
them under three budgets (six minutes)."""

from __future__ import annotations

from typing import Any

import pytest
from habits_compared import ALL, HABITS, compare

import reprise
from reprise.torch.session.session import Session
from reprise.torch.session.step_end import StepEnd
from reprise.torch.training.armed import current

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

BUDGETS = ("0.9x", "0.7x", "0.5x")
# Of those that were above their budget once: another data type, other sizes, parameters from before
# the meter, gradients that a check held, a graph that is kept for another backward.
SOME = [
    ("sharpness_aware", "0.9x"),
    ("spectral_norm", "0.7x"),
    ("tied_weights", "0.7x"),
    ("another_type", "0.7x"),
    ("batches_of_any_size", "0.9x"),
    ("half_precision_scaler", "0.9x"),
    ("several_losses", "0.9x"),
    ("parameters_swapped", "0.9x"),
    ("gan", "0.9x"),
]
CASES = [(name, budget) for name in HABITS for budget in BUDGETS] if ALL else SOME


@pytest.mark.long
@pytest.mark.parametrize(("name", "budget"), CASES)
def test_the_budget_holds_and_no_bit_changes(
    name: str, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    steps: dict[int, list[tuple[int, int]]] = {}  # of each model: peak and budget
    count = StepEnd._count

    def noted(self: StepEnd, step: Any) -> None:
        within = step.rung.plan.budget_bytes
        steps.setdefault(id(self._job), []).append((step.peak, within))
        count(self, step)

    monkeypatch.setattr(StepEnd, "_count", noted)

    def armed(model: Any) -> Any:
        models.append(model)
        return reprise.auto(model, budget=budget, verify_every=3, name=name)

    try:
        compare(name, armed)
        for model in models:
            session = current(model)
            assert isinstance(session, Session)
            report = reprise.report(model)
            assert report.failed_checks == 0, report.why
            assert "Reprise failed" not in report.why
            # Of whatever rung. A step that has left its plan keeps everything, and is counted.
            above = [step for step in steps.get(id(session.job), ()) if step[0] > step[1]]
            assert len(above) <= report.mismatched_steps, above
            if not report.planned_steps:
                assert report.why or session.job.step.number <= session.job.options.warmup + 2
    finally:
        for model in models:
            reprise.remove(model)
