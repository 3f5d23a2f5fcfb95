# SPDX-License-Identifier: Apache-2.0
"""What a summary says of rows that were measured on a GPU: the card, the noise, whose bytes a
figure is, and what Reprise announced beside what was measured.

head(about)                  # lines of markdown
noise("gpt", of, depths)     # lines: plain beside plain
tables(results)              # lines
"""

from __future__ import annotations

from typing import Any

__all__ = ["head", "noise", "tables"]

Row = dict[str, Any]


def head(about: Row) -> list[str]:
    """Says what was measured, and on which card."""
    tf32 = "with" if about["tf32_convolutions"] else "without"
    return [
        f"{about['date']}, {about['card']} ({about['card_bytes'] / 2**30:.1f} GiB), "
        f"torch {about['torch']}, driver {about['driver']}. `{about['command']}`",
        "",
        f"float32, convolutions {tf32} TF32. Times are GPU times of a step, the median of "
        f"{about['steps']} between CUDA events, beside that of a process that trains plainly. "
        "Peaks are of requested bytes: what tensors ask for. Activation memory is the peak above "
        "what stays between steps (parameters, gradients, optimizer state, the batch).",
        "",
    ]


def noise(name: str, of: dict[tuple[str, int], Row], depths: list[int]) -> list[str]:
    """Says by how much two processes that train plainly differ."""
    lines = []
    for blocks in depths:
        plain, again = of.get(("plain", blocks), {}), of.get(("plain-again", blocks), {})
        if "step_ns" not in plain or "step_ns" not in again:
            continue
        apart = abs(again["step_ns"] / plain["step_ns"] - 1)
        line = f"- {name}, {blocks} blocks, plain twice: step times {apart:.1%} apart, "
        if again["bits"] == "equal":
            lines.append(line + "losses, weights and buffers equal.")
        else:
            lines.append(
                line + f"{again['bits']}; so nothing is claimed of the bits of other ways."
            )
    return lines


def tables(results: list[Row]) -> list[str]:
    """Rows of all ways; those of Reprise's plans; their sentences."""
    lines = [
        "",
        "MiB: requested by tensors; allocated with the allocator's rounding; reserved by it from "
        "the driver, at the peak and in a step that begins with no unused segments; in use on the "
        "whole device as the driver says, before the first tensor (CUDA context, other processes) "
        "and after the steps.",
        "",
        "| network | blocks | | requested | of it static | allocated | reserved | reserved anew "
        "| device before | device after | step ms | added time | bits |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(row) for row in results]
    plans = [row for row in results if "sentence" in row]
    if not plans:
        return lines
    plain = {(r["network"], r["blocks"]): r for r in results if r["way"] == "plain"}
    lines += [
        "",
        "What Reprise announced, and what was measured. Seconds are wall time from the beginning "
        "of the first step to the end of the first planned one, beside those of plain's first six.",
        "",
        "| network | blocks | | budget MiB | peak announced | measured | time announced | measured "
        "| first planned step | s until then | plain's first 6 | ops | planned steps | checks "
        "| engine | validated |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_plan(row, plain.get((row["network"], row["blocks"]), {})) for row in plans]
    lines.append("")
    for row in plans:
        lines.append(f"- {row['network']}, {row['blocks']} blocks, {row['way']}: {row['sentence']}")
    return lines


def _row(row: Row) -> str:
    start = f"| {row['network']} | {row['blocks']} | {row['way']} "
    if "step_ns" not in row:
        return start + f"| {row['error']} |" + " |" * 9
    kinds = ("peak", "static", "allocated", "reserved", "fresh_reserved", "driver_before", "driver")
    cells = [_mib(row[f"{kind}_bytes"]) for kind in kinds]
    cells += [f"{row['step_ns'] / 1e6:.2f}", _added(row["step_ns"], row.get("plain_ns", 0))]
    planned = row.get("planned_in_series")
    if planned is not None and planned != len(row["steps_ns"]):
        cells[-1] += f" ({planned} of {len(row['steps_ns'])} steps planned)"
    return start + "".join(f"| {cell} " for cell in (*cells, row["bits"])) + "|"


def _plan(row: Row, plain: Row) -> str:
    announced = measured = peak = ""
    if row["planned_steps"]:
        announced = _added(row["predicted_step_ns"], row["base_step_ns"])
        measured = _added(row["step_ns"], row.get("plain_ns", 0))
        peak = _mib(row["predicted_peak_bytes"])
    waited = "planned_after_s" in row
    cells = [
        _mib(row["budget_bytes"]),
        peak,
        _mib(row["peak_bytes"]),
        announced,
        measured,
        str(row.get("first_planned_step", "none")),
        f"{row['planned_after_s']:.2f}" if waited else "",
        f"{plain['first_steps_s']:.2f}" if "first_steps_s" in plain else "",
        str(row["ops"] or ""),
        f"{row['planned_steps']}"
        + (f", {row['over_budget_steps']} over budget" if row["over_budget_steps"] else ""),
        f"{row['checks']}" + (f", {row['failed_checks']} failed" if row["failed_checks"] else ""),
        _engine(row),
        "yes" if row["validated"] else "no",
    ]
    start = f"| {row['network']} | {row['blocks']} | {row['way']} "
    return start + "".join(f"| {cell} " for cell in cells) + "|"


def _engine(row: Row) -> str:
    if not row["planned_steps"]:
        return ""
    return f"Python: {row['in_python']}" if row["in_python"] else "native"


def _mib(size: int | None) -> str:
    return "out of memory" if size is None else f"{size / 2**20:.1f}"


def _added(ns: int, base_ns: int) -> str:
    """The share of time beyond a base; a dash if there is no base."""
    return f"{ns / base_ns - 1:+.1%}" if base_ns else "\N{EN DASH}"
