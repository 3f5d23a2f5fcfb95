# SPDX-License-Identifier: Apache-2.0
"""Whether two runs of a script have said the same, and what became of the one under Reprise.

masked("iter 3: loss 2.31, time 41.50ms")       # times are masked
judge(case, budget, plain, armed)                # a row of the table
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any

from .cases import Case

__all__ = ["FAILURES", "Result", "Row", "judge", "masked"]

_TIMES = (
    r"\d+(\.\d+)? ?(ms|s|us|sec|seconds)\b",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([.,]\d+)?",
    r"'\w+_(runtime|per_second)': '?[\d.]+'?",  # as the Trainer of transformers logs them
    r"ms/batch +\d+(\.\d+)?",
    r"(Time|Data) +\d+\.\d+ \( *\d+\.\d+\)",  # as imagenet's meters print them
    r"\d+(\.\d+)? ?(it|s)/(s|it)\b",
)
# Progress bars, and what a process says of itself.
_LEFT_OUT = r"\d+%\||\|.*\[\d\d:\d\d|^\s*$|^\[?[WIE]\d{4} |^\[rank\d\]:\[W"
# Lines that come with every run say nothing about why there is no plan.
_ALWAYS = r"private daemon|dashboard"


def masked(text: str, more: tuple[str, ...] = ()) -> list[str]:
    """Its lines with times and whatever matches `more` replaced by `#`."""
    for pattern in (*_TIMES, *more):
        text = re.sub(pattern, "#", text)
    return text.splitlines()


@dataclass(frozen=True)
class Result:
    """One run of a script."""

    code: int
    out: str
    errors: str  # of the job, without the lines of Reprise
    said: tuple[str, ...] = ()  # those of Reprise
    run: dict[str, Any] = field(default_factory=dict)  # what `reprise run --json` said
    heap: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """What became of one script under a budget."""

    case: str
    arguments: str
    budget: str
    outcome: str = ""
    note: str = ""
    plain_code: int = 0
    armed_code: int = 0
    same_output: bool = False
    difference: list[str] = field(default_factory=list)
    plain_bytes: int = 0  # the most that one of the last steps added to the heap
    armed_bytes: int = 0

    @property
    def failed(self) -> bool:
        """The job was hurt, or told nothing."""
        return self.outcome in FAILURES


FAILURES = {
    "other exit code": "the script ended with another exit code than plainly",
    "other output": "the script printed something else than plainly",
    "silent": "no plan, and no line says why",
    "broken case": "the plain run itself did not end as the case says",
}


def _rise(heap: dict[str, Any]) -> int:
    rises = heap.get("rises") or []
    return max(rises[-4:]) if len(rises) > 8 else 0


def _outcome(run: dict[str, Any], said: tuple[str, ...]) -> tuple[str, str]:
    verdict = run.get("verdict", {})
    sentence = verdict.get("sentence", "")
    telling = [line for line in said if not re.search(_ALWAYS, line)]
    if int(verdict.get("planned_steps", 0)):
        return ("validated" if verdict.get("validated") else "planned"), sentence
    if re.search(r"Nothing fits|This executor cannot", sentence):
        return "refused", sentence
    if not telling:
        return "silent", sentence
    if "never attached" in telling[-1]:
        return "not attached", telling[-1]
    return "unplanned", sentence or telling[-1]


def judge(case: Case, budget: str, plain: Result, armed: Result | None) -> Row:
    """The row of one script; `armed`: None where the plain run was no use."""
    row = Row(case.name, " ".join(case.arguments), budget, plain_code=plain.code)
    row.plain_bytes = _rise(plain.heap)
    if armed is None:
        row.outcome = "broken case"
        row.note = (plain.errors.strip().splitlines() or ["nothing on standard error"])[-1]
        return row
    row.armed_code, row.armed_bytes = armed.code, _rise(armed.heap)
    pairs = ((plain.out, armed.out), (plain.errors, armed.errors))
    for before, after in pairs:
        lines = [
            [line for line in masked(text, case.mask) if not re.search(_LEFT_OUT, line)]
            for text in (before, after)
        ]
        if case.torchrun:
            lines = [sorted(text) for text in lines]
        row.difference += list(difflib.unified_diff(*lines, "plain", "armed", lineterm="", n=0))
    row.same_output = not row.difference
    row.outcome, row.note = _outcome(armed.run, armed.said)
    if armed.code != plain.code:
        row.outcome = "other exit code"
        row.note = (armed.errors.strip().splitlines() or [row.note])[-1]
    elif not row.same_output:
        row.outcome, row.note = "other output", " / ".join(row.difference[3:5])
    return row
