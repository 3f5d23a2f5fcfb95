# SPDX-License-Identifier: Apache-2.0
"""Scripts around one habit each (habits.py) with the real daemon and planner: the budget holds in
every step that is as captured, or is refused, and no bit changes. REPRISE_HABITS=all runs each of
them under three budgets."""

from __future__ import annotations

from typing import Any

import pytest
from habits import HABITS
from test_habits import ALL, compare
from test_zoo import machine  # noqa: F401

import reprise
from reprise import api

pytestmark = pytest.mark.e2e

SOME = ("sharpness_aware", "spectral_norm", "tied_weights")
CASES = [(n, b) for n in HABITS for b in ("0.9x", "0.7x", "0.5x")] if ALL else [
    (n, "0.7x") for n in SOME
]  # fmt: skip


@pytest.mark.parametrize(("name", "budget"), CASES)
def test_the_budget_holds_and_no_bit_changes(name: str, budget: str) -> None:
    models: list[Any] = []

    def armed(model: Any) -> Any:
        models.append(model)
        return reprise.auto(model, budget=budget, verify_every=3, name=name)

    try:
        compare(name, armed)
        for model in models:
            session = api._sessions[model]
            report = reprise.report(model)
            assert report.failed_checks == 0, report.why
            assert "fault of its own" not in report.why
            if len(session.ladder.rungs) == 1:  # one program all the time
                assert session.measured.over_budget_steps <= report.mismatched_steps
            if not report.planned_steps:
                assert report.why or session.step.number <= session.warmup + 2
    finally:
        for model in models:
            reprise.remove(model)
