#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every answer of the benchmark cells with the command itself.

    bench/planner/verify_cells.py [--reprise PROGRAM] [--budgets F,F,...]
                                  [--time-limit TIME] GRAPH...

For each graph file and budget, `reprise plan` writes a plan file and `reprise
verify GRAPH PLAN` checks it: the schedule, and the bound or the refusal with
its certificate. One line per cell, then the counts. Exits with 1 if the
command rejects an answer.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path


def answer_of(reprise: str, graph: Path, budget: str, time_limit: str, out: Path) -> dict:
    """Plans one cell into `out`, a refusal too, and returns what it says."""
    command = [reprise, "plan", str(graph), "--budget", f"{budget}x", "--json"]
    command += ["--time-limit", time_limit, "--out", str(out), "--force"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(f"{graph.name} at {budget}x: {done.stderr.strip()}")
    if not out.exists():
        out.write_text(done.stdout)
    return json.loads(out.read_text())


def main() -> int:
    """Plans and verifies all cells; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reprise", default="build/bin/reprise")
    parser.add_argument("--budgets", default="0.8,0.6,0.5,0.4,0.3,0.1")
    parser.add_argument("--time-limit", default="2s")
    parser.add_argument("graphs", nargs="+", type=Path)
    options = parser.parse_args()

    counts: Counter[str] = Counter()
    rejected = 0
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cell.plan.json"
        for graph in options.graphs:
            for budget in options.budgets.split(","):
                out.unlink(missing_ok=True)
                answer = answer_of(options.reprise, graph, budget, options.time_limit, out)
                verify = [options.reprise, "verify", str(graph), str(out)]
                checked = subprocess.run(verify, check=False, capture_output=True, text=True)
                holds = checked.returncode == 0
                rejected += not holds
                if answer.get("feasible"):
                    kind = "plan"
                else:
                    kind = "no plan found" if answer.get("undecided") else "refusal"
                proof = answer.get("bound_proof", "none")
                counts[f"{kind}, proof: {proof}, {'holds' if holds else 'REJECTED'}"] += 1
                print(
                    f"{graph.name} {budget}x {kind} ({proof}): {checked.stdout.strip()}",
                    flush=True,
                )
    for what, count in sorted(counts.items()):
        print(f"{count:4} {what}")
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
