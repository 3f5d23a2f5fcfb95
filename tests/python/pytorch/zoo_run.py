# SPDX-License-Identifier: Apache-2.0
"""Trains one network of the zoo plainly and under a budget, and compares.

    python tests/python/pytorch/zoo_run.py --model gpt --budget 0.6x --steps 20 --json

One JSON object per model and budget: figures as `reprise.report` gives them, and whether the loss
curve, every parameter and every buffer after the last step are those of the plain job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
for folder in (HERE, HERE.parents[2] / "clients/python/src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from zoo import ZOO, ZooJob  # noqa: E402

import reprise  # noqa: E402
from reprise.torch.training.armed import current  # noqa: E402

BUDGETS = ("0.8x", "0.6x", "0.4x", "0.3x")


def curve(job: ZooJob, steps: int) -> list[str]:
    """Trains; returns the losses to the last bit."""
    torch.manual_seed(1)
    return [job.step(number).item().hex() for number in range(steps)]


# Of a job in a process of its own: steps before those whose time counts, and these.
WARM, TIMED = 30, 40
# What malloc has given out stays the process's, as with the allocators of devices. Else a step
# gives some of it back, or none, and pays up to a tenth of its time for new pages, by chance.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


def times(name: str, budget: str) -> dict[str, Any]:
    """Trains alone, with budget "plain" without Reprise, and with "none" armed without a plan.
    Returns the CPU times of its steps, and what is announced for them by that of the base."""
    job = ZOO[name]()
    if budget != "plain":
        reprise.auto(job.model, budget=None if budget == "none" else budget, verify_every=0)
    took = []
    for number in range(WARM + TIMED):
        began = time.process_time_ns()
        job.step(number)
        took.append(time.process_time_ns() - began)
    found: dict[str, Any] = {"cpu_ns": took[WARM:]}
    if budget not in ("plain", "none"):
        report = reprise.report(job.model)
        if report.planned_steps:
            found["announced"] = report.predicted_step_ns / report.base_step_ns
    return found


@cache
def alone(name: str, budget: str) -> dict[str, Any]:
    """Returns `times` of a process of its own: what else lives in one is in its caches, too."""
    command = [sys.executable, __file__, "--model", name, "--budget", budget, "--times"]
    command += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **KEPT})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def state(job: ZooJob) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in job.model.state_dict().items()}


def run(
    name: str, budget: str, steps: int = 20, verify_every: int = 3, timed: bool = False
) -> dict[str, Any]:
    """Plain, then armed, from the same seed. `timed`: then a plain job, one that is armed without a
    budget, and a planned one, each alone, for their CPU times."""
    plain = ZOO[name]()
    expected = curve(plain, steps)
    end = state(plain)
    del plain
    job = ZOO[name]()
    began = time.perf_counter()
    reprise.auto(job.model, budget=budget, verify_every=verify_every, name=name)
    found = curve(job, steps)
    took = time.perf_counter() - began
    report = reprise.report(job.model)
    session: Any = current(job.model)
    exact = session is not None and session.job.meter.exact
    figures = asdict(report)
    after = state(job)
    reprise.remove(job.model)
    figures.update(
        model=name,
        asked=budget,
        curve_equal=found == expected,
        state_equal=all(torch.equal(end[n], after[n]) for n in end),
        values_equal=report.values_equal,
        validated=report.validated,
        refused="needs at least" in f"{report.sentence} {report.why}",
        exact=exact,
        seconds=round(took, 2),
    )
    if timed and report.planned_steps:
        for how in ("plain", "none", budget):
            kind = "planned" if how == budget else how
            figures |= {f"{kind}_{key}": value for key, value in alone(name, how).items()}
    return figures


def line(f: dict[str, Any]) -> str:
    peak = f["measured_peak_bytes"] / f["predicted_peak_bytes"] - 1 if f["planned_steps"] else 0
    slow = f["measured_step_ns"] / f["predicted_step_ns"] - 1 if f["predicted_step_ns"] else 0
    verdict = "validated" if f["validated"] else "refused" if f["refused"] else "FAILED"
    equal = "equal" if f["curve_equal"] and f["state_equal"] else "DIFFERENT"
    return (
        f"{f['model']:16} {f['asked']:5} {verdict:10} {equal:9} "
        f"base {f['base_peak_bytes'] / 2**20:6.2f} budget {f['budget_bytes'] / 2**20:6.2f} "
        f"measured {f['measured_peak_bytes'] / 2**20:6.2f} MiB ({peak:+.2%} of predicted) "
        f"step {f['base_step_ns'] / 1e6:6.1f} -> {f['measured_step_ns'] / 1e6:6.1f} ms "
        f"({slow:+.0%} of predicted) planned {f['planned_steps']} "
        f"mismatched {f['mismatched_steps']} checks {f['checks']} {f['seconds']} s {f['why']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=sorted(ZOO))
    parser.add_argument("--budget", action="append")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--times", action="store_true", help="CPU times of the steps, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.times:
        print(json.dumps(times(args.model[0], args.budget[0])))
        return 0
    bad = 0
    for name in args.model or list(ZOO):
        for budget in args.budget or BUDGETS:
            figures = run(name, budget, args.steps)
            print(json.dumps(figures) if args.json else line(figures), flush=True)
            fine = figures["validated"] or figures["refused"]
            bad += not (fine and figures["curve_equal"] and figures["state_equal"])
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
