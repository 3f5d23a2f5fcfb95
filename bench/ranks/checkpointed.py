# SPDX-License-Identifier: Apache-2.0
"""FSDP2 under a plan, beside checkpointing of every block, at the peak of the latter.

    python bench/ranks/checkpointed.py --width 64 128 256 --out bench/results/ranks-checkpointed.md

Two gloo ranks train the job `fsdp2` of this folder three times at once: plainly, with every block
checkpointed, and under a plan whose budget is the checkpointed job's measured peak. The three take
their steps in turns in the same processes, so what else the machine does falls on all of them.
Times are CPU times of a whole rank (gloo's threads included): the median over turns and ranks of
the plain step, and of what another step took more than the plain one of its turn.

Beside the measured times stand those of the operators that run again, as they were captured:
checkpointing repeats the forwards of the blocks, the plan what it says. Their ratio is what the
plan saves before all other work of a step. `--width` makes operators larger, so that the other work
counts less.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
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

WAYS = ("plain", "checkpointed", "planned")
SETTLING, UNPLANNED = (
    4,
    8,
)  # steps before the budget is known, and before there is a plan
LIMIT_S = 500.0


def rank(turns: int, folder: Path) -> None:
    """Trains as one rank in all ways; writes what was measured, and ends the process."""
    import torch
    from job import _exit, digest
    from torch import distributed

    import reprise
    from reprise.torch.meter.state import open_meter, start_counting

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    made = {way: _made(way) for way in WAYS}
    meter = open_meter("cpu")
    start_counting(meter, torch.device("cpu"))
    numbers = dict.fromkeys(WAYS, 0)

    def step(way: str) -> tuple[int, int]:
        """Takes one step; returns its CPU time, and its peak above what was alive before."""
        numbers[way] += 1
        torch.manual_seed(1000 * numbers[way] + distributed.get_rank())
        before = meter.live()
        meter.reset_peak()
        began = time.process_time_ns()
        made[way].step(0)
        return time.process_time_ns() - began, meter.peak() - before

    for way in WAYS:
        step(way)  # makes gradients and the optimizer's state
    peaks = [step("checkpointed")[1] for _ in range(SETTLING)]
    # Gloo's threads free some buffers late; the step needs the least of what was seen.
    most = torch.tensor(float(min(peaks)), dtype=torch.float64)
    distributed.all_reduce(most, distributed.ReduceOp.MAX)
    planned = made["planned"].arm[0]
    reprise.auto(planned, budget=meter.live() + int(most.item()), verify_every=1000)
    for _ in range(UNPLANNED):
        step("planned")
    taken = [[step(way) for way in WAYS] for _ in range(turns)]
    for way in WAYS:
        while numbers[way] < max(numbers.values()):
            step(way)
    report = reprise.report(planned)
    found: dict[str, Any] = {
        "ns": [[one[0] for one in turn] for turn in taken],
        "peaks": [min(turn[n][1] for turn in taken) for n in range(len(WAYS))],
        "asked": int(most.item()),
        "bits": [digest(made[way].parameters()) for way in WAYS],
        "validated": report.validated,
        "why": str(report),
    }
    if report.planned_steps:
        found |= _again(planned)
    (folder / f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    _exit()


def _made(way: str) -> Any:
    """Returns the job, the same parameters each time."""
    import torch
    from jobs import loop, sharded
    from networks import Decoder
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    if way != "checkpointed":
        return sharded()
    model = Decoder()
    blocks = list(model.blocks)
    apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)
    for block in model.blocks:
        fully_shard(block)
    return loop(fully_shard(model))


def _again(model: Any) -> dict[str, Any]:
    """Returns the times of the operators that each way runs again, and how good the plan is."""
    from reprise.torch.training import armed

    session: Any = armed.current(model)
    graph, plan = session.job.plans.graph.message(), session.plan
    ops = graph["ops"]

    def took(op: dict[str, Any]) -> int:
        return int(op.get("again_ns") or op["time_ns"])

    blocks = [
        op
        for op in ops
        if op["phase"] == "PHASE_FORWARD" and op.get("module", "").startswith("blocks.")
    ]
    return {
        "blocks_ns": sum(map(took, blocks)),
        "blocks_ops": len(blocks),
        "again_ns": sum(took(ops[number]) for number in plan.recomputed_ops),
        "again_ops": len(plan.recomputed_ops),
        "predicted_ns": plan.time_ns - plan.base_time_ns,
        "least_ns": int(plan.bound * plan.base_time_ns),
    }


def ran(width: int, turns: int) -> list[dict[str, Any]]:
    """Trains in two ranks; returns what each of them wrote. Raises SystemExit if one failed."""
    import networks
    import start

    networks.WIDTH = width
    folder = Path(tempfile.mkdtemp(prefix=f"width-{width}-"))

    def train(*_: Any) -> None:
        try:
            rank(turns, folder)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

    start._train = train
    wrong, errors = start.started("fsdp2", "auto", turns, folder, LIMIT_S)
    if wrong:
        raise SystemExit(f"width {width}: {wrong}\n{errors[-3000:]}")
    return [json.loads((folder / f"{n}.json").read_text()) for n in (0, 1)]


def page(found: dict[int, list[dict[str, Any]]], command: str, turns: int, load: str) -> str:
    """Returns the results as Markdown."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    lines = [
        "# FSDP2 beside checkpointing of every block",
        "",
        f"`{command}`, {now} UTC, two gloo ranks on CPU, one thread",
        f"each, {turns} turns, load {load}. Activations: the peak of a step above what was alive",
        "before it, in MiB, of the rank with the highest one. Added: CPU time of a rank per step,",
        "beyond the plain step of the same turn, median. Run again: time of the operators that run",
        "again, as captured, and how many. Least: what every plan under this budget adds, by the",
        "word of the solver, with the tape's own work for each operator that runs again.",
        "",
        "| width | way | activations | ms | added | run again, ms | operators | least, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ends = []
    for width, ranks in found.items():
        turn = [times for one in ranks for times in one["ns"]]
        plain = statistics.median(times[0] for times in turn)
        again = {
            "checkpointed": [_mean(ranks, "blocks_ns"), _mean(ranks, "blocks_ops")],
            "planned": [_mean(ranks, "again_ns"), _mean(ranks, "again_ops")],
        }
        added = []
        for n, way in enumerate(WAYS):
            peak = max(one["peaks"][n] for one in ranks) / 2**20
            added.append(statistics.median(times[n] - times[0] for times in turn))
            cells = [f"{peak:.2f}", f"{(plain + added[n]) / 1e6:.0f}"]
            cells.append(f"{added[n] / plain:+.1%}" if n else "")
            took, count = again.get(way, (0, 0))
            cells += [f"{took / 1e6:.1f}", f"{count:.0f}"] if n else ["", ""]
            cells.append(f"{_mean(ranks, 'least_ns') / 1e6:.1f}" if way == "planned" else "")
            lines.append(f"| {width} | {way} | " + " | ".join(cells) + " |")
        equal = all(len(set(one["bits"])) == 1 for one in ranks)
        share = again["planned"][0] / again["checkpointed"][0]
        ends.append(
            f"- Width {width}: the plan adds {added[2] / added[1]:.2f} of what checkpointing adds; "
            f"it runs {share:.2f} of the operators' time again that checkpointing does. Validated: "
            f"{sum(one['validated'] for one in ranks)} of {len(ranks)} ranks; "
            f"parameters {'equal' if equal else 'DIFFER FROM'} those of the plain job, bit for bit."
        )
    return "\n".join([*lines, "", *ends]) + "\n"


def _mean(ranks: list[dict[str, Any]], name: str) -> float:
    return statistics.fmean(one[name] for one in ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--width", type=int, nargs="+", default=[64])
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

    found: dict[int, list[dict[str, Any]]] = {}
    loads = [os.getloadavg()[0]]
    for width in args.width:
        found[width] = ran(width, args.turns)
        loads.append(os.getloadavg()[0])
        command = f"python bench/ranks/checkpointed.py --width {' '.join(map(str, args.width))}"
        load = f"{min(loads):.0f} to {max(loads):.0f}"
        args.out.write_text(page(found, command, args.turns, load))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
