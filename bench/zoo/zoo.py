# SPDX-License-Identifier: Apache-2.0
"""Every network of the zoo under every budget: is it equal, does it fit, is the prediction true.

    python bench/zoo/zoo.py --out bench/results/zoo                 # all 64 cells, some 15 minutes
    python bench/zoo/zoo.py --out bench/results/zoo --model gpt     # a piece; others are kept

16 networks (tests/python/pytorch/zoo.py), 80, 60, 40 and 30 % of the memory of activations, 20
steps each beside the same 20 steps without Reprise. Written are OUT.jsonl, a line per cell with
date and load, and OUT.md, the table of it.

Times are CPU times of forty steps, after thirty, of the planned job against one that is armed
without a budget, each in a process of its own whose malloc keeps its memory, without checks: the
tenth percentile, because a machine that does something else makes some steps longer and none
shorter. The prediction is the ratio Reprise announces. What being armed costs by itself, against a
job without Reprise, stands in a column of its own. Ends with 1 when a cell is neither validated nor
refused, or not equal.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "clients/python/src", ROOT / "tests/python/pytorch"):
    sys.path.insert(0, str(folder))

PEAK_WITHIN, TIME_WITHIN = 0.02, 0.03


def verdict(cell: dict[str, Any]) -> str:
    if not (cell["curve_equal"] and cell["state_equal"]):
        return "DIFFERENT"
    if cell["validated"]:
        return "validated"
    return "refused" if cell["refused"] else "FAILED"


def peak_error(cell: dict[str, Any]) -> float:
    return float(cell["measured_peak_bytes"] / cell["predicted_peak_bytes"] - 1)


def ratios(cell: dict[str, Any]) -> tuple[float, float]:
    """Step time under the plan by that without one: announced, measured."""
    return cell["planned_announced"], _times(cell, "planned", "none")


def _times(cell: dict[str, Any], steps: str, of: str) -> float:
    quick = [quantiles(cell[f"{kind}_cpu_ns"], n=10)[0] for kind in (steps, of)]
    return quick[0] / quick[1]


def table(cells: list[dict[str, Any]]) -> str:
    lines = [
        "| network | budget | | base MiB | budget MiB | measured MiB | of predicted | "
        "armed, no plan | step, announced | measured | off | checks |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    planned = [c for c in cells if c["planned_steps"]]
    for cell in cells:
        row = f"| {cell['model']} | {cell['asked']} | {verdict(cell)} "
        row += f"| {cell['base_peak_bytes'] / 2**20:.2f} "
        if cell["planned_steps"]:
            row += f"| {cell['budget_bytes'] / 2**20:.2f} "
            announced, measured = ratios(cell)
            row += f"| {cell['measured_peak_bytes'] / 2**20:.2f} | {peak_error(cell):+.2%} "
            row += f"| {_times(cell, 'none', 'plain'):.3f} "
            row += f"| {announced:.3f} | {measured:.3f} | {measured - announced:+.1%} "
            row += f"| {cell['checks']} |"
        else:
            row += "| | | | | | | | |"
        lines.append(row)
    off = [abs(peak_error(c)) for c in planned]
    late = [abs(ratios(c)[1] - ratios(c)[0]) for c in planned]
    kinds = [verdict(c) for c in cells]
    loads = [c["load"] for c in cells]
    head = [
        "# The zoo under its budgets",
        "",
        f"{len(cells)} cells, {', '.join(sorted({c['date'] for c in cells}))}, {os.cpu_count()} "
        f"cores, one thread, load {min(loads)} to {max(loads)} while they ran. "
        "`python bench/zoo/zoo.py --out bench/results/zoo`",
        "",
        f"- {kinds.count('validated')} validated, {kinds.count('refused')} refused with proof, "
        f"{kinds.count('FAILED')} failed; losses, parameters and buffers after 20 steps equal to "
        f"the last bit in {len(cells) - kinds.count('DIFFERENT')}.",
        f"- measured peak within {PEAK_WITHIN:.0%} of the predicted one in "
        f"{sum(e <= PEAK_WITHIN for e in off)} of {len(off)}, at most {max(off, default=0):.2%} "
        "off; above the budget in "
        f"{sum(c['measured_peak_bytes'] > c['budget_bytes'] for c in planned)}.",
        f"- measured added time (CPU, by a job that is armed without a plan) within "
        f"{100 * TIME_WITHIN:.0f} points of what was announced in "
        f"{sum(e <= TIME_WITHIN for e in late)} of {len(late)}.",
        "",
    ]
    return "\n".join([*head, *lines, ""])


def main() -> int:
    from zoo import ZOO
    from zoo_run import BUDGETS, line, run

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=sorted(ZOO))
    parser.add_argument("--budget", action="append")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    import torch

    # A daemon of its own, whoever else runs one.
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    (folder / "run").mkdir(mode=0o700)
    os.environ.update(XDG_RUNTIME_DIR=str(folder / "run"), XDG_STATE_HOME=str(folder / "state"))
    torch.set_num_threads(args.threads)
    rows = args.out.with_suffix(".jsonl")
    known: dict[tuple[str, str], dict[str, Any]] = {}
    if rows.exists():
        for text in rows.read_text().splitlines():
            cell = json.loads(text)
            known[cell["model"], cell["asked"]] = cell
    order = [(name, budget) for name in ZOO for budget in BUDGETS]
    for name, budget in order:
        if name not in (args.model or ZOO) or budget not in (args.budget or BUDGETS):
            continue
        cell = run(name, budget, args.steps, timed=True)
        cell["date"] = datetime.date.today().isoformat()
        cell["load"] = round(os.getloadavg()[0], 1)
        known[name, budget] = cell
        print(line(cell), flush=True)
        cells = [known[key] for key in order if key in known]
        rows.parent.mkdir(parents=True, exist_ok=True)
        rows.write_text("".join(json.dumps(c) + "\n" for c in cells))
        args.out.with_suffix(".md").write_text(table(cells))
    bad = [c for c in known.values() if verdict(c) not in ("validated", "refused")]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
