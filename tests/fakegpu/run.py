# SPDX-License-Identifier: Apache-2.0
"""Runs the cases on the fake GPU, each plain and under its budget, and says what came of them.

    run.py [--out FILE.md] [--jobs N] [NAME...]      # names: a part of a case's name is enough

Exits with 1 where something is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cases import CASES, PLANNED, REFUSED, Case

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
TIMEOUT_S = 900
# Of a reference, which is to fit: what only the job under its budget is about.
LIMITS = ("FAKEGPU_MEMORY",)


@dataclass
class Outcome:
    """What a case came to."""

    case: Case
    wrong: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)


def on_the_fake() -> dict[str, str]:
    """What makes a process see it."""
    lib = os.environ["FAKEGPU_LIB"]
    return {
        "LD_LIBRARY_PATH": lib,
        "LD_PRELOAD": f"{lib}/libfakecudart.so",
        "FAKEGPU_KERNELS": f"{lib}/libfakekernels.so",
        "OMP_NUM_THREADS": "1",
    }


def job(args: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], str]:
    """The last line of a job, and what it said. Empty where it died."""
    with tempfile.TemporaryDirectory(prefix="fakegpu-") as state:
        done = subprocess.run(
            [os.environ["FAKEGPU_PYTHON"], str(HERE / "job.py"), *args],
            env={**os.environ, **on_the_fake(), **dict(env), "XDG_STATE_HOME": state},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    line = done.stdout.strip().rsplit("\n", 1)[-1]
    if done.returncode != 0 or not line.startswith("{"):
        return {}, done.stderr
    return json.loads(line), done.stderr


@cache
def plain(args: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], str]:
    """The job without Reprise, on a device that is large enough."""
    return job(args, env)


def run(case: Case) -> Outcome:
    """A case, beside its reference."""
    outcome = Outcome(case)
    roomy = tuple(item for item in case.env.items() if item[0] not in LIMITS)
    expected, said = plain(case.args, roomy)
    if not expected:
        outcome.wrong.append(f"the reference died: {said.strip().splitlines()[-1:]}")
        return outcome
    armed = (*case.args, *case.options, "--budget", case.budget)
    found, said = job(armed, tuple(case.env.items()))
    if not found:
        outcome.wrong.append(f"died: {said.strip().splitlines()[-1:]}")
        return outcome
    outcome.found = found
    judge(outcome, expected, said)
    return outcome


def judge(outcome: Outcome, expected: dict[str, Any], said: str) -> None:
    """Is it as it must be?"""
    case, found, expect = outcome.case, outcome.found, outcome.expect
    lines = "\n".join(line for line in said.splitlines() if line.startswith("reprise:"))
    if case.repeats and not found["ran_out"]:
        expect(found["weights"] == expected["weights"], "other weights than plain")
    expect(found["failed"] == 0, f"{found['failed']} checks failed")
    expect(found["over"] == 0, f"{found['over']} steps over the budget")
    expect(found["mismatched"] == case.mismatched, f"{found['mismatched']} steps mismatched")
    expect(case.says in lines, f"does not say {case.says!r}")
    expect(not case.silent or case.silent not in lines, f"says {case.silent!r}")
    if case.base:
        expect(found["base"] <= case.base * MIB, f"base {found['base'] / MIB:.1f} MiB")
    waits = found["waits"]
    for name, count in waits.items():
        allowed = expected["waits"].get(name, 0) if name == "cudaStreamSynchronize" else 0
        expect(count <= allowed, f"{name} {count} times in a planned step")
    if case.ends == PLANNED:
        expect(found["stage"] == PLANNED, f"{found['stage']} ({found['why']})")
        expect(found["measured"] <= found["budget"], "measured above the budget")
        expect(not case.checked or found["checks"] > 0, "not checked")
        expect(found["quiet_steps"] > 0, "no planned step to look at")
    elif case.ends == REFUSED:
        expect(found["predicted"] == 0, "has a plan")
        expect(bool(found["why"]), "no reason")


def row(outcome: Outcome) -> str:
    """Of the table."""
    case, found = outcome.case, outcome.found
    came = "; ".join(outcome.wrong) or ("refused" if case.ends == REFUSED else case.ends)
    mib = [
        f"{found[name] / MIB:.1f}" if found.get(name) else ""
        for name in ("base", "budget", "predicted", "measured")
    ]
    same = "equal" if case.repeats else "its own are not the same twice"
    waited = found.get("waits", {}).get("cudaDeviceSynchronize", 0)
    cells = [case.name, case.budget, came, *mib, same, str(waited), str(found.get("checks", ""))]
    return "| " + " | ".join(cells) + " |"


def table(outcomes: list[Outcome]) -> str:
    """Of all of them."""
    fine = sum(not outcome.wrong for outcome in outcomes)
    return "\n".join(
        [
            "# Jobs on PyTorch's CUDA build over a fake GPU",
            "",
            "`scripts/test fakegpu`; not run on a GPU. Peaks are bytes asked of torch's CUDA "
            "allocator, in MiB.",
            "",
            f"{fine} of {len(outcomes)} as they must be.",
            "",
            "| job | budget | | base | budget | predicted | measured | weights beside plain |"
            " device synchronizations per planned step | checks |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(row, outcomes),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    wanted = [c for c in CASES if not asked.names or any(n in c.name for n in asked.names)]
    outcomes = []
    with ThreadPoolExecutor(max(1, asked.jobs)) as pool:
        for outcome in pool.map(run, wanted):
            outcomes.append(outcome)
            print(f"{'; '.join(outcome.wrong) or 'ok':<12} {outcome.case.name}", flush=True)
    if asked.out is not None:
        asked.out.write_text(table(outcomes))
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
