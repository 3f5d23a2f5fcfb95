# SPDX-License-Identifier: Apache-2.0
"""What is asked of the figure, in sentences, and its table.

summary(about, results)      # markdown
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["added", "growth", "summary"]

Result = dict[str, Any]


def added(result: Result) -> float:
    """Step time beyond that of the plain twin, as a share of it."""
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


def _planned(result: Result | None) -> bool:
    return result is not None and "error" not in result and result.get("planned_steps", 1) > 0


def _tenth(name: str, of: dict[tuple[str, int], Result], depths: list[int]) -> str:
    """At the greatest depth where a plan for a tenth exists."""
    for blocks in reversed(depths):
        ours, plain = of.get(("reprise@tenth", blocks)), of.get(("plain", blocks))
        if not _planned(ours) or not _planned(plain):
            continue
        assert ours is not None
        assert plain is not None
        text = (
            f"- {name}, {blocks} blocks, {of_step(plain) / of_step(ours):.1f} times less "
            f"activation memory than plain: Reprise adds {added(ours):.1%}"
        )
        sqrt = of.get(("sqrt", blocks))
        if sqrt is not None and _planned(sqrt):
            text += (
                f", \u221an segments {added(sqrt):.1%} "
                f"(at {of_step(plain) / of_step(sqrt):.1f} times less)"
            )
        return text + "."
    return f"- {name}: no plan fits a tenth of plain's activation memory at these depths."


def _equal_peak(
    name: str, of: dict[tuple[str, int], Result], depths: list[int], way: str, words: str
) -> str:
    parts = []
    for blocks in depths:
        theirs, ours = of.get((way, blocks)), of.get((f"reprise@{way}", blocks))
        if theirs is None or ours is None or not _planned(theirs) or not _planned(ours):
            continue
        less = 1 - added(ours) / added(theirs)
        parts.append(f"{blocks} blocks {added(theirs):.1%} and {added(ours):.1%} ({less:.0%} less)")
    return f"- {name}, at {words}'s peak, time added by it and by Reprise: {'; '.join(parts)}."


def _growth(name: str, of: dict[tuple[str, int], Result], depths: list[int]) -> str:
    parts = []
    for way in ("plain", "sqrt", "block", "reprise@sqrt", "reprise@block", "reprise@tenth"):
        points = [(b, of_step(of[way, b])) for b in depths if _planned(of.get((way, b)))]
        if len(points) > 1:
            parts.append(f"{way} {growth(points):.2f}")
    return f"- {name}: activation memory grows as depth to the power of: {', '.join(parts)}."


def summary(about: Result, results: list[Result]) -> str:
    """Sentences and table."""
    head = [
        "# The headline figure",
        "",
        f"{about['date']}, {about['cores']} cores, load {about['load']} at the start. "
        f"`{about['command']}`",
        "",
        "Times are CPU times beside a plain twin in the same process; activation memory is the "
        "peak above what stays between steps (parameters, gradients, optimizer state).",
        "",
    ]
    for name in dict.fromkeys(r["network"] for r in results):
        of = {(r["way"], r["blocks"]): r for r in results if r["network"] == name}
        depths = sorted({blocks for _, blocks in of})
        head += [
            _tenth(name, of, depths),
            _equal_peak(name, of, depths, "block", "per-block checkpointing"),
            _equal_peak(name, of, depths, "sqrt", "\u221an"),
            _growth(name, of, depths),
        ]
    rows = [
        "",
        "| network | blocks | | peak MiB | of it static | added time |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        row = f"| {r['network']} | {r['blocks']} | {r['way']} "
        if _planned(r):
            row += f"| {r['peak_bytes'] / 2**20:.1f} | {r['static_bytes'] / 2**20:.1f} "
            rows.append(row + f"| {added(r):+.1%} |")
        else:
            rows.append(row + f"| {r.get('error') or r['sentence']} | | |")
    return "\n".join([*head, *rows, ""])
