# SPDX-License-Identifier: Apache-2.0
"""Scripts around one habit each (habits.py): under any plan they print what they print plainly, and
every parameter, gradient, buffer and generator is the same after every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import referee
from arming import arm, remove_all, sessions
from habits_compared import ALL, HABITS, compare
from local_agent import LocalAgent

from reprise.plan import Plan


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


class Valid(LocalAgent):
    """Asks for random plans until one is valid."""

    def make(self, graph: dict[str, Any], number: int) -> Plan:
        for seed in range(self.seed, self.seed + 20):
            self.seed = seed
            try:
                return super().make(graph, number)
            except referee.Invalid:
                continue
        self.share = 0.0
        return super().make(graph, number)


# How much is given up, how often it is made again, and the first steps: of every habit one of
# them, or with REPRISE_HABITS=all each.
PLANS = [(1.0, 0.3, "auto"), (0.6, 0.9, "auto"), (0.8, 0.0, "host")]
CASES = [
    (name, *plan)
    for at, name in enumerate(HABITS)
    for number, plan in enumerate(PLANS)
    if ALL or number == at % len(PLANS)
]


@pytest.mark.parametrize(("name", "share", "again", "first"), CASES)
def test_no_training_habit_changes_a_bit_under_reprise(
    name: str, share: float, again: float, first: str
) -> None:
    def armed(model: Any) -> Any:
        arm(model, Valid(share, again, len(sessions)), first=first)
        return model

    compare(name, armed)

    for session in sessions:
        assert session.job.record.verdict().checks_differing == 0, session.job.why
        assert "Reprise failed" not in session.job.why
