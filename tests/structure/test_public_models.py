# SPDX-License-Identifier: Apache-2.0
"""What `scripts/test zoo` takes for a step above the budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.models.run import SLACK_BYTES, judge

MIB = 1 << 20


def outcome(plain: list[int], armed: list[int], before: list[int] | None = None) -> str:
    report = {"sentence": "It fits", "planned_steps": 4, "validated": True, "why": ""}
    ran: dict[str, Any] = {"digest": "same", "report": report, "rises": armed}
    ran["planned"] = [False] + [True] * (len(armed) - 1)
    alone = {"digest": "same", "rises": plain, "tensor_rise": 8 * MIB, "before": before or []}
    return judge("style/plain", "0.5x", alone, ran, None, []).outcome


def test_a_step_above_what_was_asked_fails_the_row_by_a_quarter_of_a_mib() -> None:
    plain = [8 * MIB] * 6

    assert outcome(plain, [8 * MIB] + [4 * MIB] * 5) == "validated"
    assert outcome(plain, [8 * MIB] + [4 * MIB] * 4 + [4 * MIB + SLACK_BYTES]) == "validated"
    assert outcome(plain, [8 * MIB] + [4 * MIB] * 4 + [5 * MIB]) == "over budget"


def test_what_a_step_takes_before_its_forward_is_its_own() -> None:
    plain, armed = [8 * MIB] * 7, [8 * MIB, 5 * MIB] + [4 * MIB] * 5

    assert outcome(plain, armed) == "over budget"
    assert outcome(plain, armed, before=[0, 5 * MIB]) == "validated"
    assert outcome(plain, armed, before=[0, 0, 5 * MIB]) == "over budget"
