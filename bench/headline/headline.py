# SPDX-License-Identifier: Apache-2.0
"""Peak memory and step time of a deep residual network, five ways in one run.

    python bench/headline/headline.py --batch 64 --blocks 3 9 18 36 --out bench/results/headline

    plain       PyTorch as it is
    sqrt        torch.utils.checkpoint over about sqrt(n) segments
    block       torch.utils.checkpoint over every block
    compile     torch.compile with its own activation_memory_budget (0.3; ahead-of-time partitioner,
                eager kernels, so that kernels are the same in all five)
    reprise     under the peak that sqrt had, and under the one that block had

The network is the pre-activation ResNet of examples/train_resnet.py on random images of 32x32, as
in the figure of the gradient-checkpointing package. Every way trains the same seed in a process of
its own; peaks are those of one whole step (parameters, gradients and optimizer state included) as
the probe counts them. Times are CPU times of the process, the median of the last steps: with one
thread on an idle machine those of the clock, on a busy one what they would be. Writes OUT.jsonl,
OUT.peak.svg and OUT.time.svg.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "clients/python/src", ROOT / "examples"):
    sys.path.insert(0, str(folder))

WAYS = ("plain", "sqrt", "block", "compile")
COLOURS = {
    "plain": "#777777",
    "sqrt": "#d95f02",
    "block": "#7570b3",
    "compile": "#1b9e77",
    "reprise@sqrt": "#e7298a",
    "reprise@block": "#66a61e",
}


def measure(way: str, blocks: int, batch: int, steps: int, threads: int) -> dict[str, Any]:
    """One way of training, in this process."""
    import torch
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential
    from train_resnet import Block, ResNet

    import reprise
    from reprise.torch.meter import open_meter
    from reprise.torch.state import alive_bytes

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model: Any = ResNet(2 * blocks + 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(1)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    meter = open_meter("cpu")
    meter.start(alive_bytes(torch.device("cpu")))
    call = model
    if way == "sqrt":
        segments = max(1, round(math.sqrt(blocks)))

        def call(x: torch.Tensor) -> torch.Tensor:
            h = checkpoint_sequential(model.layers, segments, x, use_reentrant=False)
            return model.head(h.mean(dim=(2, 3)))

    elif way == "block":
        for layer in model.layers:
            if isinstance(layer, Block):
                plain = layer.forward
                layer.forward = lambda x, f=plain: checkpoint(f, x, use_reentrant=False)
    elif way == "compile":
        import torch._functorch.config as config

        config.activation_memory_budget = 0.3
        call = torch.compile(model, backend="aot_eager_decomp_partition")
    elif way.isdigit():
        reprise.auto(model, budget=int(way), verify_every=1000)
        steps += 6
    times: list[float] = []
    cpu_times: list[float] = []
    peaks: list[int] = []
    losses = []
    for _ in range(steps):
        meter.reset_peak()
        began, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        cpu_times.append(time.process_time() - cpu)
        peaks.append(meter.peak())
        losses.append(loss.item().hex())
    last = max(3, steps // 3)
    found = {
        "peak_bytes": max(peaks[-last:]),
        "step_ns": int(statistics.median(cpu_times[-last:]) * 1e9),
        "wall_ns": int(statistics.median(times[-last:]) * 1e9),
        "losses": losses,
        "exact": meter.exact,
    }
    if way.isdigit():
        report = reprise.report(model)
        found |= {
            "validated": report.validated,
            "planned_steps": report.planned_steps,
            "predicted_peak_bytes": report.predicted_peak_bytes,
            "predicted_step_ns": report.predicted_step_ns,
            "base_step_ns": report.base_step_ns,
            "sentence": report.sentence,
        }
        reprise.remove(model)
    return found


def one(way: str, blocks: int, args: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", way, "--blocks", str(blocks)]
    command += ["--batch", str(args.batch), "--steps", str(args.steps)]
    command += ["--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {"error": lines[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def plot(path: Path, title: str, unit: str, series: dict[str, list[tuple[float, float]]]) -> None:
    """Lines over the number of blocks."""
    width, height, left, top = 640, 400, 70, 40
    points = [p for line in series.values() for p in line]
    right_x, top_y = max(p[0] for p in points), max(p[1] for p in points) * 1.05

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + x / right_x * (width - left - 150),
            height - 50 - y / top_y * (height - 50 - top),
        )

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">{title}</text>',
    ]
    for tick in range(6):
        y = top_y * tick / 5
        _, at_y = at(0, y)
        out.append(
            f'<line x1="{left}" x2="{width - 150}" y1="{at_y:.1f}" y2="{at_y:.1f}" '
            f'stroke="#ddd"/><text x="{left - 6}" y="{at_y + 4:.1f}" text-anchor="end">'
            f"{y:.3g}</text>"
        )
    out.append(f'<text x="{left}" y="{height - 10}">residual blocks; {unit}</text>')
    for x in sorted({p[0] for p in points}):
        at_x, _ = at(x, 0)
        out.append(f'<text x="{at_x:.1f}" y="{height - 32}" text-anchor="middle">{x:g}</text>')
    for number, (name, line) in enumerate(series.items()):
        path_text = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(*p) for p in sorted(line)))
        colour = COLOURS[name]
        out.append(
            f'<polyline points="{path_text}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        out.append(
            f'<text x="{width - 140}" y="{top + 20 + 18 * number}" fill="{colour}">{name}</text>'
        )
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=64, help="the original figure: 1280")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[3, 9, 18, 36], help="multiples of 3"
    )
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("headline"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.blocks[0], args.batch, args.steps, args.threads)))
        return 0
    if any(n < 3 or n % 3 for n in args.blocks):
        parser.error("--blocks: three stages of equal depth need multiples of 3")
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "command": " ".join(["python", *sys.argv]),
    }
    lines = [json.dumps(about)]
    series: dict[str, dict[str, list[tuple[float, float]]]] = {"peak": {}, "time": {}}
    for blocks in args.blocks:
        found: dict[str, dict[str, Any]] = {}
        for way in WAYS:
            found[way] = one(way, blocks, args)
        for target in ("sqrt", "block"):
            if "error" not in found[target]:
                budget = str(found[target]["peak_bytes"])
                found[f"reprise@{target}"] = one(budget, blocks, args)
        for way, result in found.items():
            lines.append(json.dumps({"way": way, "blocks": blocks, "batch": args.batch, **result}))
            if "error" in result or (way.startswith("reprise") and not result["planned_steps"]):
                print(
                    f"{blocks:4} {way:14} {result.get('error') or result['sentence']}", flush=True
                )
                continue
            peak, step = result["peak_bytes"] / 2**20, result["step_ns"] / 1e6
            added = result["step_ns"] / found["plain"]["step_ns"] - 1
            equal = result["losses"][: args.steps] == found["plain"]["losses"][: args.steps]
            print(
                f"{blocks:4} {way:14} peak {peak:8.1f} MiB  step {step:8.1f} ms ({added:+.1%})  "
                f"losses {'equal' if equal else 'differ'}",
                flush=True,
            )
            series["peak"].setdefault(way, []).append((blocks, peak))
            series["time"].setdefault(way, []).append((blocks, step))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")
    plot(args.out.with_suffix(".peak.svg"), "Peak of a training step", "MiB", series["peak"])
    plot(args.out.with_suffix(".time.svg"), "CPU time of a training step", "ms", series["time"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
