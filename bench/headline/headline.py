# SPDX-License-Identifier: Apache-2.0
"""Peak memory and step time of deep networks, five ways in one run, over their depth.

    python bench/headline/headline.py --out bench/results/headline

    plain       PyTorch as it is
    sqrt        torch.utils.checkpoint over about sqrt(n) segments
    block       torch.utils.checkpoint over every block
    compile     torch.compile with its own activation_memory_budget (0.3; ahead-of-time partitioner,
                eager kernels, so that kernels are the same in all five)
    reprise     under the peak that sqrt had, under the one that block had, and with a tenth of
                plain's activations (what its peak has above what stays: parameters, gradients,
                optimizer state)

The networks are the pre-activation ResNet of examples/train_resnet.py on random images of 32x32, as
in the figure of the gradient-checkpointing package, and the GPT of examples/train_gpt.py. Every way
trains the same seed in a process of its own; peaks are those of one whole step (parameters,
gradients and optimizer state included) as the probe counts them. Times are CPU times of a step, the
quickest of some: of the way and of a plain twin in the same process, step by step in turns, and the
added time is the ratio of the two. What else the machine does then falls on both. With one thread
on an idle machine these are times of the clock. Writes OUT.jsonl, OUT.md (the sentences
that are asked of this figure, and the table), OUT.NETWORK.peak.svg and OUT.NETWORK.time.svg. The
default depths take some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plot import plot
from summary import summary

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "clients/python/src", ROOT / "examples"):
    sys.path.insert(0, str(folder))

WAYS = ("plain", "sqrt", "block", "compile")
BLOCKS = {"resnet": (9, 36, 132), "gpt": (3, 6, 12)}
BATCH = {"resnet": 32, "gpt": 4}
# Reprise trains so many steps before its plan is there.
UNPLANNED = 6


def measure(name: str, way: str, blocks: int, batch: int, steps: int) -> dict[str, Any]:
    """One way of training, in this process."""
    import torch
    from networks import NETWORKS, Network

    import reprise
    from reprise.torch.meter.meter import open_meter
    from reprise.torch.meter.state import alive_bytes
    from reprise.units import format_bytes

    def step(network: Network, call: Callable[..., Any]) -> tuple[torch.Tensor, int]:
        began = time.process_time_ns()
        network.optimizer.zero_grad()
        loss = network.loss(call(network.x))
        loss.backward()
        network.optimizer.step()
        return loss, time.process_time_ns() - began

    meter = open_meter("cpu")
    meter.start(alive_bytes(torch.device("cpu")))
    # The twin is there from the beginning, or a plan would have to make room for it later.
    twin = NETWORKS[name](blocks, batch)
    step(twin, twin.model)
    beside = meter.live()
    torch.manual_seed(0)
    network = NETWORKS[name](blocks, batch)
    torch.manual_seed(1)
    planned = way.isdigit()
    call = network.way(way)
    if planned:
        reprise.auto(network.model, budget=int(way) + beside, verify_every=1000)
    peaks, losses, static = [], [], 0
    for _ in range(steps + UNPLANNED * planned):
        static = meter.live() - beside  # with the gradients of the step before
        meter.reset_peak()
        losses.append(step(network, call)[0].item().hex())
        peaks.append(meter.peak() - beside)
    found: dict[str, Any] = {
        "peak_bytes": max(peaks[-max(3, steps // 3) :]),
        "static_bytes": static,
        "losses": losses,
        "exact": meter.exact,
    }
    both = [(step(twin, twin.model)[1], step(network, call)[1]) for _ in range(2 * steps)]
    found["plain_ns"], found["step_ns"] = (min(times) for times in zip(*both, strict=True))
    if planned:
        report = reprise.report(network.model)
        with_twin = f"(with the {format_bytes(beside)} that its plain twin holds)"
        found |= {
            "validated": report.validated,
            "planned_steps": report.planned_steps,
            "predicted_peak_bytes": report.predicted_peak_bytes - beside,
            "predicted_ratio": report.predicted_step_ns / max(1, report.base_step_ns),
            "sentence": f"{report.sentence} {with_twin}",
        }
    reprise.remove(network.model)
    return found


def one(name: str, way: str, blocks: int, args: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", way, "--network", name]
    command += ["--blocks", str(blocks), "--steps", str(args.steps)]
    command += ["--threads", str(args.threads), "--batch", str(args.batch or BATCH[name])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {"error": lines[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def figure(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One network: its results, and its two plots."""
    lines: list[dict[str, Any]] = []
    series: dict[str, dict[str, list[tuple[float, float]]]] = {"peak": {}, "time": {}}
    for blocks in args.blocks or BLOCKS[name]:
        found: dict[str, dict[str, Any]] = {}
        for way in WAYS:
            found[way] = one(name, way, blocks, args)
        budgets = {t: f["peak_bytes"] for t, f in found.items() if "peak_bytes" in f}
        if "plain" in budgets:
            static = found["plain"]["static_bytes"]
            budgets["tenth"] = static + (budgets["plain"] - static) // 10
        for target in ("sqrt", "block", "tenth"):
            if target in budgets:
                found[f"reprise@{target}"] = one(name, str(budgets[target]), blocks, args)
        for way, result in found.items():
            about = {"network": name, "way": way, "blocks": blocks}
            lines.append(about | {"batch": args.batch or BATCH[name]} | result)
            if "error" in result or (way.startswith("reprise") and not result["planned_steps"]):
                what = result.get("error") or result["sentence"]
                print(f"{name} {blocks:4} {way:14} {what}", flush=True)
                continue
            peak, ratio = result["peak_bytes"] / 2**20, result["step_ns"] / result["plain_ns"]
            equal = result["losses"][: args.steps] == found["plain"]["losses"][: args.steps]
            print(
                f"{name} {blocks:4} {way:14} peak {peak:8.1f} MiB  step {ratio - 1:+7.1%} of "
                f"{result['plain_ns'] / 1e6:.1f} ms  losses {'equal' if equal else 'differ'}",
                flush=True,
            )
            series["peak"].setdefault(way, []).append((blocks, peak))
            series["time"].setdefault(way, []).append((blocks, ratio))
    titles = {
        "peak": f"{name}: peak of a training step, MiB",
        "time": f"{name}: CPU time of a training step, times that of plain PyTorch",
    }
    axis = "residual blocks" if name == "resnet" else "layers"
    for kind, title in titles.items():
        plot(args.out.with_suffix(f".{name}.{kind}.svg"), title, axis, series[kind])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--network", nargs="+", choices=sorted(BLOCKS), default=sorted(BLOCKS))
    parser.add_argument("--batch", type=int, help="the original figure: resnet 1280")
    parser.add_argument("--blocks", type=int, nargs="+", help="resnet: multiples of 3")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("headline"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        import torch

        torch.set_num_threads(args.threads)
        found = measure(args.network[0], args.one, args.blocks[0], args.batch, args.steps)
        print(json.dumps(found))
        return 0
    if "resnet" in args.network and any(n < 3 or n % 3 for n in args.blocks or ()):
        parser.error("--blocks: three stages of equal depth need multiples of 3")
    # A daemon of its own, whoever else runs one.
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    (folder / "run").mkdir(mode=0o700)
    os.environ.update(XDG_RUNTIME_DIR=str(folder / "run"), XDG_STATE_HOME=str(folder / "state"))
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "command": " ".join(["python", *sys.argv]),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for name in args.network:
        lines += figure(name, args)
        text = "".join(json.dumps(line) + "\n" for line in (about, *lines))
        args.out.with_suffix(".jsonl").write_text(text)
        args.out.with_suffix(".md").write_text(summary(about, lines))
    print(summary(about, lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
