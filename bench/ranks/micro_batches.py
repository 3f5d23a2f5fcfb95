# SPDX-License-Identifier: Apache-2.0
"""Pipelines with more and more micro-batches: how the step graph and its plan grow.

    python bench/ranks/micro_batches.py --out bench/results/ranks-micro-batches.md

Trains the jobs `gpipe` and `1f1b` of this folder under `reprise.auto` with so many micro-batches of
four rows a step. The last stage does not join the outputs of all micro-batches (`return_outputs`):
with them its memory grows after the backward, which no plan can lower. Said are for each rank:
operators of the step graph, what the solver took by its own clock, the plan, CPU times of steps,
and whether the run was validated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "clients/python/src")]

JOBS = ("gpipe", "1f1b")
STEPS, LIMIT_S = 10, 900.0


def rank(job: str, folder: Path) -> None:
    """Trains as one rank until there are planned steps; writes what is known of the plan."""
    import torch
    from job import _exit
    from jobs import JOBS as made_by
    from torch import distributed

    import reprise
    from reprise.torch.training import armed

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    made = made_by[job].make()
    reprise.auto(made.arm, budget="0.6x", verify_every=4)
    torch.manual_seed(1 + distributed.get_rank())
    took = []
    for number in range(STEPS):
        began = time.process_time_ns()
        made.step(number)
        took.append(time.process_time_ns() - began)
    model = made.arm[0]
    report = reprise.report(model)
    session: Any = armed.current(model)
    found: dict[str, Any] = {
        "planned": report.planned_steps,
        "validated": report.validated,
        "why": str(report),
        "base": report.base_peak_bytes,
        "asked": report.budget_bytes,
        "predicted": report.predicted_peak_bytes,
        "measured": report.measured_peak_bytes,
        "plain_ns": took[1],
        "longest_ns": max(took),
        "planned_ns": took[-1],
    }
    plan, graph = session.plan, session.job.plans.graph
    if graph is not None:
        found |= {"ops": len(graph.step.ops), "json": len(graph.to_json())}
    if plan is not None:
        found |= {"solve_ms": plan.solve_ms, "overhead": plan.overhead, "bound": plan.bound}
        found |= {"solver": plan.solver, "interrupted": plan.interrupted}
        found |= {"again": len(plan.recomputed_ops)}
    (folder / f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    _exit()


def ran(job: str, count: int) -> list[dict[str, Any]]:
    """Trains in two ranks; returns what each of them wrote. Raises SystemExit if one failed."""
    import pipelines
    import start

    pipelines.MICRO_BATCHES, pipelines.RETURN_OUTPUTS = count, False
    folder = Path(tempfile.mkdtemp(prefix=f"{job}-{count}-"))

    def train(*_: Any) -> None:
        try:
            rank(job, folder)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

    start._train = train
    wrong, errors = start.started(job, "auto", STEPS, folder, LIMIT_S)
    if wrong:
        raise SystemExit(f"{job}, {count} micro-batches: {wrong}\n{errors[-3000:]}")
    return [json.loads((folder / f"{n}.json").read_text()) for n in (0, 1)]


def page(rows: list[tuple[str, int, int, dict[str, Any]]], command: str, load: str) -> str:
    """Returns the results as Markdown."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    lines = [
        "# Pipelines with many micro-batches",
        "",
        f"`{command}`, {now} UTC, two gloo ranks on CPU,",
        f"one thread each, load {load}; 4 rows a micro-batch, {STEPS} steps of `reprise.auto` at",
        "0.6x. Peaks in MiB. Solver: its own clock. CPU: of the rank, for the second (plain) step,",
        "for the longest step, which is the captured one or a checked one, and for the last one.",
        "",
        "| job | micro-batches | rank | operators | graph, kB | solver, s | operators again "
        "| predicted, at least | plain | asked | measured | CPU ms | validated |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for job, count, number, one in rows:
        mib = [f"{one[name] / 2**20:.1f}" for name in ("base", "asked", "measured")]
        times = [f"{one[name] / 1e6:.0f}" for name in ("plain_ns", "longest_ns", "planned_ns")]
        cells = [job, str(count), str(number), str(one.get("ops", ""))]
        cells.append(f"{one['json'] / 1e3:.0f}" if "json" in one else "")
        cells.append(f"{one['solve_ms'] / 1e3:.1f}" if "solve_ms" in one else "")
        cells.append(str(one.get("again", "")))
        cells.append(f"{one['overhead']:+.1%}, {one['bound']:+.1%}" if "bound" in one else "")
        cells += [*mib, ", ".join(times), "yes" if one["validated"] else one["why"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--job", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    build = Path(os.environ.get("REPRISE_BUILD", ROOT / "build"))
    os.environ.setdefault("REPRISE_DAEMON", str(build / "bin/reprised"))
    os.environ.setdefault("REPRISE_AGENT", str(build / "lib/libreprise_agent.so"))
    own = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))  # a daemon of its own
    (own / "run").mkdir(mode=0o700)
    os.environ.update(XDG_RUNTIME_DIR=str(own / "run"), XDG_STATE_HOME=str(own / "state"))
    os.environ["OMP_NUM_THREADS"] = "1"
    import pipelines  # noqa: F401  imports torch once, before the ranks are forked

    counts = " ".join(map(str, args.counts))
    command = f"python bench/ranks/micro_batches.py --counts {counts}"
    rows: list[tuple[str, int, int, dict[str, Any]]] = []
    loads = [os.getloadavg()[0]]
    for job in args.job:
        for count in args.counts:
            for number, one in enumerate(ran(job, count)):
                rows.append((job, count, number, one))
            loads.append(os.getloadavg()[0])
            load = f"{min(loads):.0f} to {max(loads):.0f}"
            args.out.write_text(page(rows, command, load))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
