#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints overhead, bound, gap and time of `reprise plan` over step graphs.

bench/planner/table.py FOLDER [--budgets 0.9x,0.7x,0.5x] [--reprise build/bin/reprise]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time


def plan(
    reprise: str, graph: pathlib.Path, budget: str
) -> tuple[dict[str, object] | None, float, str]:
    start = time.monotonic()
    done = subprocess.run(
        [reprise, "plan", str(graph), "--budget", budget, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - start
    try:
        return json.loads(done.stdout), seconds, ""
    except json.JSONDecodeError:
        error = done.stderr.strip().splitlines()
        return None, seconds, error[-1] if error else f"exit code {done.returncode}"


def row(
    graph: str, budget: str, answer: dict[str, object] | None, seconds: float, error: str
) -> str:
    head = f"{graph:26} {budget:>6}"
    if answer is None:
        return f"{head}  {error}"
    if not answer.get("feasible"):
        needed = answer.get("smallest_budget_bytes", 0)
        verdict = (
            f"impossible below {needed}"
            if needed > answer.get("budget_bytes", 0)
            else "not decided"
        )
        return f"{head}  {verdict} (op {answer.get('blocking_op')})  {seconds:.2f} s"
    overhead, bound = 100 * float(answer["overhead"]), 100 * float(answer["bound"])
    mark = "optimal" if answer.get("proven_optimal") else str(answer.get("solver", ""))
    return f"{head} {overhead:9.4f} {bound:9.4f} {overhead - bound:8.4f} {seconds:7.2f}  {mark}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--budgets", default="0.9x,0.7x,0.5x")
    parser.add_argument("--reprise", default="build/bin/reprise")
    arguments = parser.parse_args()
    graphs = sorted(arguments.folder.glob("*.json"))
    if not graphs:
        print(f"{arguments.folder}: holds no *.json step graph", file=sys.stderr)
        return 1
    print(f"{'graph':26} {'budget':>6} {'overhead%':>9} {'bound%':>9} {'gap pp':>8} {'s':>7}  by")
    for graph in graphs:
        for budget in arguments.budgets.split(","):
            print(row(graph.stem, budget, *plan(arguments.reprise, graph, budget)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
