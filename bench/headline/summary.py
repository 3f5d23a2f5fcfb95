# SPDX-License-Identifier: Apache-2.0
"""What is asked of the figure, in sentences, and its table.

summary(about, results)      # markdown

    python bench/headline/summary.py OUT.jsonl    # of a run that was ended
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from gpu_summary import head as gpu_head
from gpu_summary import noise, tables

__all__ = ["added", "growth", "is_measured", "summary"]

Result = dict[str, Any]


def added(result: Result) -> float:
    """Step time beyond that of plain, as a share of it."""
    return float(result["step_ns"] / result["plain_ns"] - 1)


def of_step(result: Result) -> int:
    """Peak above what stays between steps."""
    return int(result["peak_bytes"] - result["static_bytes"])


def growth(points: list[tuple[int, int]]) -> float:
    """The k of the line through points of depth and bytes that are about depth to the k: least
    squares over logarithms."""
    x = [math.log(depth) for depth, _ in points]
    y = [math.log(size) for _, size in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return slope / sum((a - mean_x) ** 2 for a in x)


def is_measured(result: Result) -> bool:
    """Whether there are a peak and a time, and those of a plan wherever there was to be one."""
    if "error" in result or not result.get("planned_steps", 1):
        return False
    planned = result.get("planned_in_series")
    return planned is None or planned == len(result["steps_ns"])


def _timed(result: Result | None) -> bool:
    """Whether it was also measured beside plain, which may not have fitted."""
    return result is not None and is_measured(result) and "plain_ns" in result


def _tenth(name: str, of: dict[tuple[str, int], Result], depths: list[int]) -> str:
    """At the greatest depth where a plan for a tenth exists. Empty: none was asked for."""
    for blocks in reversed(depths):
        ours, plain = of.get(("reprise@tenth", blocks)), of.get(("plain", blocks))
        if not _timed(ours) or not _timed(plain):
            continue
        assert ours is not None
        assert plain is not None
        text = (
            f"- {name}, {blocks} blocks, {of_step(plain) / of_step(ours):.1f} times less "
            f"activation memory than plain: Reprise adds {added(ours):.1%}"
        )
        sqrt = of.get(("sqrt", blocks))
        if sqrt is not None and _timed(sqrt):
            text += (
                f", \u221an segments {added(sqrt):.1%} "
                f"(at {of_step(plain) / of_step(sqrt):.1f} times less)"
            )
        return text + "."
    refused = [of["reprise@tenth", b] for b in depths if ("reprise@tenth", b) in of]
    if not refused or not all("Nothing fits" in row.get("sentence", "") for row in refused):
        return ""  # the table says what happened
    return f"- {name}: no plan fits a tenth of plain's activation memory at these depths."


def _equal_peak(
    name: str, of: dict[tuple[str, int], Result], depths: list[int], way: str, words: str
) -> str:
    parts = []
    for blocks in depths:
        theirs, ours = of.get((way, blocks)), of.get((f"reprise@{way}", blocks))
        if theirs is None or ours is None or not _timed(theirs) or not _timed(ours):
            continue
        part = f"{blocks} blocks {added(theirs):.1%} and {added(ours):.1%}"
        # Where checkpointing adds less than the noise there is nothing to be a share of.
        if added(theirs) > 0:
            less = 1 - added(ours) / added(theirs)
            part += f" ({abs(less):.0%} {'less' if less >= 0 else 'more'})"
        parts.append(part)
    if not parts:
        return ""
    return f"- {name}, at {words}'s peak, time added by it and by Reprise: {'; '.join(parts)}."


def _growth(name: str, of: dict[tuple[str, int], Result], depths: list[int]) -> str:
    parts = []
    for way in ("plain", "sqrt", "block", "reprise@sqrt", "reprise@block", "reprise@tenth"):
        rows = [(b, of[way, b]) for b in depths if (way, b) in of]
        points = [(b, of_step(row)) for b, row in rows if is_measured(row)]
        if len(points) > 1:
            parts.append(f"{way} {growth(points):.2f}")
    if not parts:
        return ""
    return f"- {name}: activation memory grows as depth to the power of: {', '.join(parts)}."


def _cpu_head(about: Result) -> list[str]:
    return [
        f"{about['date']}, {about['cores']} cores, load {about['load']} at the start. "
        f"`{about['command']}`",
        "",
        "Times are CPU times beside a plain twin in the same process; activation memory is the "
        "peak above what stays between steps (parameters, gradients, optimizer state).",
        "",
    ]


def _cpu_table(results: list[Result]) -> list[str]:
    rows = [
        "",
        "| network | blocks | | peak MiB | of it static | added time |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        row = f"| {r['network']} | {r['blocks']} | {r['way']} "
        if is_measured(r):
            row += f"| {r['peak_bytes'] / 2**20:.1f} | {r['static_bytes'] / 2**20:.1f} "
            rows.append(row + f"| {added(r):+.1%} |")
        else:
            rows.append(row + f"| {r.get('error') or r['sentence']} | | |")
    return rows


def summary(about: Result, results: list[Result]) -> str:
    """Sentences and tables. `about`: the first line of OUT.jsonl; `results`: the others."""
    on_gpu = about.get("device") == "cuda"
    sentences: list[str] = []
    for name in dict.fromkeys(r["network"] for r in results):
        of = {(r["way"], r["blocks"]): r for r in results if r["network"] == name}
        depths = sorted({blocks for _, blocks in of})
        sentences += noise(name, of, depths)
        sentences += [
            _tenth(name, of, depths),
            _equal_peak(name, of, depths, "block", "per-block checkpointing"),
            _equal_peak(name, of, depths, "sqrt", "\u221an"),
            _growth(name, of, depths),
        ]
    return "\n".join(
        [
            "# The headline figure",
            "",
            *(gpu_head(about) if on_gpu else _cpu_head(about)),
            *filter(None, sentences),
            *(tables(results) if on_gpu else _cpu_table(results)),
            "",
        ]
    )


if __name__ == "__main__":
    first, *rest = map(json.loads, Path(sys.argv[1]).read_text().splitlines())
    print(summary(first, rest))
