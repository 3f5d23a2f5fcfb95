# SPDX-License-Identifier: Apache-2.0
"""FSDP2 under a plan, beside checkpointing of every block, at the peak of the latter.

    python bench/ranks/checkpointed.py --rounds 4 --out bench/results/ranks-checkpointed.md

Two gloo ranks train the job `fsdp2` of this folder plainly, with every block checkpointed, and
under a plan whose budget is the checkpointed job's measured peak, in turns. Times are CPU times of
a whole rank (gloo's threads included), because other processes stretch the clock: the median over
the last steps of a round, then over rounds and ranks.
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
STEPS, COUNTED = 20, 10  # of a round; the last ones count
LIMIT_S = 300.0


def rank(way: str, budget: int, folder: Path) -> None:
    """Trains as one rank; writes peak and CPU time of its last steps, and ends the process."""
    import torch
    from job import digest
    from jobs import loop, sharded
    from networks import Decoder
    from torch import distributed
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )
    from torch.distributed.fsdp import fully_shard

    import reprise
    from reprise.torch.meter.meter import open_meter
    from reprise.torch.meter.state import start_counting

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.manual_seed(0)
    if way == "checkpointed":
        model = Decoder()
        blocks = list(model.blocks)
        apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)
        for block in model.blocks:
            fully_shard(block)
        made = loop(fully_shard(model))
    else:
        made = sharded()
    if way == "planned":
        reprise.auto(made.arm[0], budget=budget, verify_every=STEPS)
    meter = open_meter("cpu")
    start_counting(meter, torch.device("cpu"))
    torch.manual_seed(1 + distributed.get_rank())
    took, losses, peak = [], [], 0
    for number in range(STEPS):
        if number == STEPS - COUNTED:
            meter.reset_peak()
        began = time.process_time_ns()
        loss = made.step(number)
        took.append(time.process_time_ns() - began)
        losses.append(loss.item().hex() if loss is not None else "")
        del loss
    peak = meter.peak()
    found: dict[str, Any] = {
        "step_ns": statistics.median(took[-COUNTED:]),
        "peak": peak,
        "bits": [losses, digest(made.parameters())],
    }
    if way == "planned":
        report = reprise.report(made.arm[0])
        found |= {"validated": report.validated, "peak": report.measured_peak_bytes}
        found |= {"why": str(report), "predicted": report.predicted_peak_bytes}
    (folder / f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.barrier()
    os._exit(0)


def ran(way: str, budget: int = 0) -> list[dict[str, Any]]:
    """Trains in two ranks; returns what each of them wrote. Raises SystemExit if one failed."""
    import start

    folder = Path(tempfile.mkdtemp(prefix=f"{way}-"))

    def train(*_: Any) -> None:
        try:
            rank(way, budget, folder)
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

    start._train = train
    wrong, errors = start.started("fsdp2", "auto", STEPS, folder, LIMIT_S)
    if wrong:
        raise SystemExit(f"{way}: {wrong}\n{errors[-3000:]}")
    return [json.loads((folder / f"{n}.json").read_text()) for n in (0, 1)]


def page(found: dict[str, list[dict[str, Any]]], budget: int, load: str) -> str:
    """Returns the results as Markdown."""
    times = {way: statistics.median(one["step_ns"] for one in found[way]) for way in WAYS}
    plain = times["plain"]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    lines = [
        "# FSDP2 beside checkpointing of every block",
        "",
        f"`python bench/ranks/checkpointed.py`, {now} UTC, two gloo ranks on CPU, one thread each,",
        f"{len(found['plain']) // 2} rounds in turns, load {load}. Peaks in MiB; CPU time of a",
        f"rank per step, median; the budget is {budget / 2**20:.2f} MiB, the peak of the",
        "checkpointed job. Peaks are the highest of the last "
        f"{COUNTED} steps of a round, of a rank;",
        "under the plan: of all planned steps.",
        "",
        "| way | peak | ms | added |",
        "|---|---|---|---|",
    ]
    for way in WAYS:
        peak = max(one["peak"] for one in found[way]) / 2**20
        added = f"{times[way] / plain - 1:+.1%}" if way != "plain" else ""
        lines.append(f"| {way} | {peak:.2f} | {times[way] / 1e6:.0f} | {added} |")
    bits = all(
        one["bits"] == other["bits"]
        for one, other in zip(found["plain"], found["planned"], strict=True)
    )
    ratio = (times["planned"] - plain) / (times["checkpointed"] - plain)
    valid = sum(one["validated"] for one in found["planned"])
    lines += [
        "",
        f"The plan adds {ratio:.2f} of what checkpointing adds. Validated: {valid} of "
        f"{len(found['planned'])} ranks; losses and parameters "
        f"{'equal' if bits else 'DIFFER FROM'} those of the plain job, bit for bit.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
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

    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    loads = [os.getloadavg()[0]]
    budget = 0
    for _ in range(args.rounds):
        for way in ("plain", "checkpointed", "planned"):
            found[way] += ran(way, budget)
            if not budget and way == "checkpointed":
                budget = max(one["peak"] for one in found[way])
            loads.append(os.getloadavg()[0])
            print(way, [(one["peak"], one["step_ns"]) for one in found[way][-2:]], flush=True)
    args.out.write_text(page(found, budget, f"{min(loads):.0f} to {max(loads):.0f}"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
