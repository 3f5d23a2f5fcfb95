# SPDX-License-Identifier: Apache-2.0
"""The table of a report: one line a row, short enough for the end of a terminal's output.

python table.py REPORT.jsonl        # prints it
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from runner import RAN, Figures, lines

MIB = 1 << 20
# Figures of a training row that have a column of their own, and whose bytes they are.
COLUMNS = (
    ("step_ms", "step ms"),
    ("requested", "requested"),
    ("allocated", "allocated"),
    ("reserved", "reserved"),
    ("driver", "driver"),
    ("announced", "announced"),
)
BYTES = frozenset(("requested", "allocated", "reserved", "driver", "announced"))
# Kept in report.jsonl alone.
HIDDEN = frozenset(
    ("outcome", "losses", "sentence", "requested_by_step", "reserved_by_step", "row", "weights")
)
MOST_LINE, MOST_TABLE = 190, 11000


def rows_of(path: Path) -> list[Figures]:
    """The rows of a report in order, each with all its figures, its outcome and its seconds."""
    found: dict[tuple[str, str], Figures] = {}
    for line in lines(path):
        if "row" not in line:
            continue
        one = found.setdefault((line["block"], line["row"]), {"figures": {}})
        one["figures"] |= line.get("figures", {})
        one |= {key: line[key] for key in ("block", "row", "outcome", "why", "seconds")
                if key in line}  # fmt: skip
    return [{"outcome": "unfinished", **one} for one in found.values()]


def cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name in BYTES:
        return f"{value / MIB:.1f}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value).replace("\n", " ")


def row_text(one: Figures) -> str:
    """One row: the outcome where it is not the usual one, its columns, then all its other
    figures."""
    figures = {k: v for k, v in one["figures"].items() if k not in HIDDEN}
    text = f"{one['block']}/{one['row']} ({one.get('seconds', '?')} s)"
    if one["outcome"] != RAN:
        text += f"  ** {one['outcome']}: {one.get('why', '')}"
    own = [f"{words} {cell(name, figures.pop(name))}" for name, words in COLUMNS if name in figures]
    rest = [f"{name.replace('_', ' ')} {cell(name, value)}" for name, value in figures.items()]
    return "  ".join([text, *own, *rest])


def table(path: Path, most: int = MOST_TABLE) -> str:
    """The whole, cut to so many characters: a line is cut at its end, where the least is."""
    about: Figures = {}
    for line in lines(path):
        about |= {} if "row" in line else line
    head = f"{about.get('script', '?')}: " + ", ".join(
        f"{key} {about[key]}"
        for key in ("date", "card", "torch", "kit", "daemon", "command")
        if key in about
    )
    found = rows_of(path)
    texts = [row_text(one) for one in found]
    width = MOST_LINE
    while width > 60 and sum(min(len(text), width) + 1 for text in texts) > most - 900:
        width -= 10
    body = [text if len(text) <= width else text[: width - 1] + "…" for text in texts]
    ran = sum(one["outcome"] == RAN for one in found)
    spent: dict[str, float] = {}
    for one in found:
        spent[one["block"]] = spent.get(one["block"], 0.0) + one.get("seconds", 0.0)
    body.append("seconds: " + ", ".join(f"{name} {s:.0f}" for name, s in spent.items()))
    foot = f"{ran} of {len(found)} rows ran; bytes in MiB (requested, allocated and reserved of "
    foot += "torch's allocator, driver of the whole device); all figures are in report.jsonl"
    return "\n".join([head[:500], *body, foot])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), 1 << 20))
