# SPDX-License-Identifier: Apache-2.0
"""The ways to train that are compared, what each needs of others, how rows are compared, and the
words of those without figures.

wanted(["reprise@tenth"], "cuda")      # plain, plain-again, reprise@tenth
budget("reprise@tenth", found)         # in bytes, from the rows so far
bits(row, found)                       # "equal", or what differs from plain
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["WAYS", "bits", "budget", "is_reprise", "out_of_memory", "over_limit", "wanted"]

Row = dict[str, Any]

# In the order in which they run. `plain-again`, on a GPU, is what two runs of the same differ by.
WAYS = (
    "plain",
    "plain-again",
    "sqrt",
    "block",
    "compile",
    "reprise@sqrt",
    "reprise@block",
    "reprise@tenth",
)


def is_reprise(way: str) -> bool:
    """Returns whether a way is a plan of Reprise's."""
    return way.startswith("reprise@")


def wanted(asked: Iterable[str] | None, device: str) -> list[str]:
    """Returns the ways to run, in order: those asked for (None: all), plain, on a GPU plain once
    more, and those whose peak is another one's budget."""
    names = {way for way in WAYS if way != "plain-again"} if asked is None else set(asked)
    names |= {"plain"} | ({"plain-again"} if device == "cuda" else set())
    names |= {way.partition("@")[2] for way in names if is_reprise(way)}
    return [way for way in WAYS if way in names]


def budget(way: str, found: dict[str, Row]) -> int | None:
    """Returns the budget of a plan from the rows so far; None if the row it follows from has no
    peak. A tenth: of plain's activations, beside all that stays."""
    target = way.partition("@")[2]
    row = found.get("plain" if target == "tenth" else target, {})
    if "peak_bytes" not in row:
        return None
    peak, static = int(row["peak_bytes"]), int(row["static_bytes"])
    return static + (peak - static) // 10 if target == "tenth" else peak


def bits(way: str, found: dict[str, Row]) -> str:
    """Says whether the losses of all steps, and weights and buffers after them, are those of plain.
    Where plain differs from itself, nothing is said of the others."""
    row, plain, again = found[way], found["plain"], found.get("plain-again", {})
    if way == "plain" or "weights" not in row:
        return ""
    if "weights" not in plain:
        return "not compared: plain did not run"
    if way != "plain-again" and "weights" in again and _differences(again, plain):
        return "not compared: plain differs from itself"
    differs = _differences(row, plain)
    if not differs:
        return "equal"
    once = way != "plain-again" and "weights" not in again
    return f"{differs} differ" + (" (plain was not run twice)" if once else "")


def _differences(row: Row, plain: Row) -> str:
    """Names what differs between two rows; empty: nothing."""
    pairs = zip(row["losses"], plain["losses"], strict=True)
    first = next((number for number, (a, b) in enumerate(pairs, 1) if a != b), 0)
    parts = [f"losses from step {first}"] if first else []
    parts += [kind for kind in ("weights", "buffers") if row[kind] != plain[kind]]
    return ", ".join(parts)


def over_limit(limit_s: float) -> str:
    """Says that a way was ended because it took too long."""
    return f"ended after {limit_s:g} s (--limit)"


def out_of_memory(message: str, step: int) -> str:
    """Says what an out-of-memory error of torch says. `step`: in which one; 0: before the first."""
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", message)
    where = f"in step {step}" if step else "before the first step"
    size = asked[1] if asked else "a size that torch does not say"
    return f"out of memory {where}, asked for {size}"
