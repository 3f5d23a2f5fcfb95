# SPDX-License-Identifier: Apache-2.0
"""Trains one network of the zoo plainly and under a budget, and compares.

    python tests/python/pytorch/zoo_run.py --model gpt --budget 0.6x --steps 20 --json

One JSON object per model and budget: figures as `reprise.report` gives them, and whether the loss
curve, every parameter and every buffer after the last step are those of the plain job.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
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


def in_turns(*jobs: ZooJob, steps: int = 16) -> list[list[int]]:
    """Returns the CPU times of each job's steps. The jobs take turns, because otherwise a machine
    that gets busier makes one of them look slow."""
    times: list[list[int]] = [[] for _ in jobs]
    for number in range(-1, steps):
        for job, own in zip(jobs, times, strict=True):
            began = time.thread_time_ns()
            job.step(100 + number)
            if number >= 0:
                own.append(time.thread_time_ns() - began)
    return times


def state(job: ZooJob) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in job.model.state_dict().items()}


def run(
    name: str, budget: str, steps: int = 20, verify_every: int = 3, timed: bool = False
) -> dict[str, Any]:
    """Plain, then armed, from the same seed. `timed`: then in turns a plain job, one that is armed
    without a budget, and the planned one, for their CPU times. What Reprise announces is the second
    against the third: plain steps are measured while it watches."""
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
    cpu: list[list[int]] = [[0], [0], [0]]
    if timed and session is not None and report.planned_steps:
        session.parts.checks.every = 0
        for rung in session.job.plans.ladder.rungs:
            rung.request_id = None  # the twin's memory is no reason for another plan
        watched = ZOO[name]()
        reprise.auto(watched.model, budget=None, name=name)
        cpu = in_turns(ZOO[name](), watched, job)
        reprise.remove(watched.model)
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
        plain_cpu_ns=cpu[0],
        watched_cpu_ns=cpu[1],
        planned_cpu_ns=cpu[2],
        seconds=round(took, 2),
    )
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
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
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
