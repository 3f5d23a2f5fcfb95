# SPDX-License-Identifier: Apache-2.0
"""What `scripts/test public` takes for a failure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.scripts.cases import Case
from tests.scripts.compare import Result, judge, masked

CASE = Case("own/loop", "own/loop.py")
PLANNED: dict[str, Any] = {
    "verdict": {"planned_steps": 3, "validated": True, "sentence": "It fits"}
}
REFUSED: dict[str, Any] = {"verdict": {"sentence": "Nothing fits in 3 B: op 1 needs at least 4 B."}}


def under(code: int = 0, out: str = "loss 2.5\n", **more: Any) -> Result:
    return Result(code, out, more.pop("errors", ""), **more)


def outcome(armed: Result, plain: Result | None = None, case: Case = CASE) -> str:
    return judge(case, "0.7x", plain or under(), armed).outcome


def test_times_are_masked_and_nothing_else() -> None:
    line = "iter 3: loss 2.5104, time 41.50ms, 12.1it/s, 2026-11-22 16:26:38.228 | done"

    assert masked(line) == ["iter 3: loss 2.5104, time #, #, # | done"]


def test_a_script_that_prints_and_ends_the_same_passes_by_what_became_of_it() -> None:
    assert outcome(under(run=PLANNED)) == "validated"
    assert outcome(under(run=REFUSED)) == "refused"
    assert outcome(under(said=("reprise: training without a plan: a hook",))) == "unplanned"


def test_another_output_another_exit_code_and_silence_fail() -> None:
    assert outcome(under(out="loss 2.6\n", run=PLANNED)) == "other output"
    assert outcome(under(errors="warning: slow\n", run=PLANNED)) == "other output"
    assert outcome(under(code=1, run=PLANNED)) == "other exit code"
    assert outcome(under(said=("reprise: dashboard at http://localhost",))) == "silent"
    row = judge(CASE, "0.7x", under(code=1, errors="ImportError: six"), None)
    assert (row.outcome, row.note, row.failed) == ("broken case", "ImportError: six", True)


def test_lines_of_several_ranks_may_come_in_another_order() -> None:
    plain, armed = under(out="a\nb\n"), under(out="b\na\n", run=PLANNED)

    assert outcome(armed, plain) == "other output"
    assert outcome(armed, plain, Case("own/ddp", "own/ddp.py", torchrun=2)) == "validated"
