# SPDX-License-Identifier: Apache-2.0
"""The table of jobs on several ranks."""

from __future__ import annotations

import platform
from typing import Any

import torch

__all__ = ["table"]

COMMAND = "python bench/ranks/ranks.py --out bench/results/ranks"
WORDS = {
    "validated": "every model of every rank: planned, within its budget in every planned step, "
    "checked, never another program than planned",
    "planned": "steps ran under plans, and the sentence says what they lack to be validated",
    "refused": "no plan fits the budget, says Reprise",
    "unplanned": "no plan, for the reason in the sentence",
    "silent": "no plan, and no reason given",
    "other bits": "losses, parameters or gradients differ from the plain run",
    "other collectives": "kind, size or order of collectives differ from the plain run",
    "crash": "the plain run does not",
    "hang": "not over after 400 s",
}
MIB = 2**20
HEAD = """# Several ranks

`{command}`, {first} to {last} UTC, gloo on CPU, one
thread a rank, load {low} to {high}; torch {torch}, Python {python}. 14 steps of a language model
with 4 blocks of width 64.

Bits: losses, parameters and gradients of every rank, against the plain run. Collectives (calls):
kind, sizes and order of all, those of DistributedDataParallel and DTensor included. Peaks in MiB,
of the rank and model with the highest one, under `reprise.auto`: plain, asked, predicted, measured.
Wait: the longest time of one rank in one meeting of Reprise; the wait for the plan and for a loaded
machine counts; in brackets: of meetings within a call of the model. At: when the row was made.

| outcome | auto | run | |
|---|---|---|---|
{outcomes}

| job | ranks | budget | auto | run | calls | plain | asked | predicted | measured | wait s | at | |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the page."""
    jobs = [row for row in rows if "auto" in row]
    counts = {
        way: {w: sum(row[way]["outcome"] == w for row in jobs) for w in WORDS}
        for way in ("auto", "run")
    }
    dates, loads = [row["date"] for row in rows], [row["load"] for row in rows]
    outcomes = [
        f"| {word} | {counts['auto'][word]} | {counts['run'][word]} | {text} |"
        for word, text in WORDS.items()
        if counts["auto"][word] or counts["run"][word]
    ]
    head = HEAD.format(
        command=COMMAND,
        first=min(dates),
        last=max(dates),
        low=min(loads),
        high=max(loads),
        torch=torch.__version__,
        python=platform.python_version(),
        outcomes="\n".join(outcomes),
    )
    return head + "".join(_line(row) + "\n" for row in rows)


def _line(row: dict[str, Any]) -> str:
    if "auto" not in row:
        return f"| {row['job']} | {row['ranks']} | | plain: {row['plain']} " + "| " * 10 + "|"
    auto, run = row["auto"], row["run"]
    reports = [report for rank in auto["reports"] for report in rank]
    planned = [r for r in reports if r["planned_steps"]]
    most = max(planned or reports, key=lambda r: r["base_peak_bytes"], default=None)
    peaks = ["", "", "", ""]
    if most is not None:
        names = (
            "base_peak_bytes",
            "budget_bytes",
            "predicted_peak_bytes",
            "measured_peak_bytes",
        )
        peaks = [f"{most[name] / MIB:.2f}" if most[name] else "" for name in names]
        if not most["planned_steps"]:
            peaks[1:] = ["", "", ""]
    wait = f"{auto['longest_wait_s']:.1f} ({auto['longest_wait_in_forward_s']:.1f})"
    cells = [
        row["job"], row["ranks"], row["budget"], auto["outcome"], run["outcome"],
        max(row["collectives"]), *peaks, wait, row["date"][-5:], _sentence(row),
    ]  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _sentence(row: dict[str, Any]) -> str:
    """Returns what explains the outcome; nothing where both are validated."""
    for way in ("auto", "run"):
        found = row[way]
        if found["outcome"] == "validated":
            continue
        texts = [r["text"] for rank in found["reports"] for r in rank if not r["validated"]]
        text = texts[0] if texts else (found["said"] or [""])[0]
        return f"{way}: {text.replace('|', ' ')}"
    return ""
