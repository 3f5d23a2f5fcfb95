# SPDX-License-Identifier: Apache-2.0
"""Peak memory and step time of deep networks, five ways in one run, over their depth.

    python bench/headline/headline.py --out bench/results/headline
    python bench/headline/headline.py --device cuda --network resnet --batch 1280 \\
        --blocks 198 18 --ways plain block sqrt reprise@block reprise@sqrt reprise@tenth --out X

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
trains the same seed in a process of its own; peaks are those of one whole step, parameters,
gradients and optimizer state included.

On the CPU (on_cpu.py) peaks are as the probe counts them. Times are CPU times of a step, the
quickest of some: of the way and of a plain twin in the same process, step by step in turns, and the
added time is the ratio of the two. What else the machine does then falls on both. With one thread
on an idle machine these are times of the clock. The default depths take some ten minutes on two
cores.

With --device cuda (on_gpu.py) peaks are the allocator's counters, and times are medians between
CUDA events. There is no twin: at the size of the original figure it would leave fragments and
cached memory to what is measured. Added time is the ratio to the median of plain's process, and
plain runs twice: what the two differ by is the noise. Losses and weights are compared with plain's
to the bit, unless those two differ, too.

Appends every row to OUT.jsonl when it is known, and writes OUT.md (the sentences that are asked of
this figure, and the table), OUT.NETWORK.peak.svg and OUT.NETWORK.time.svg.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plot import STYLES, plot
from summary import added, is_measured, summary
from ways import WAYS, bits, budget, is_reprise, over_limit, wanted

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
if importlib.util.find_spec("reprise") is None:  # else what is installed, or in PYTHONPATH
    sys.path.insert(0, str(ROOT / "clients/python/src"))

BLOCKS = {"resnet": (9, 36, 132), "gpt": (3, 6, 12)}
BATCH = {"resnet": 32, "gpt": 4}
STEPS = {"cpu": 4, "cuda": 5}

Row = dict[str, Any]


def here(name: str, way: str, blocks: int, args: argparse.Namespace) -> Row:
    """One way, in this process."""
    if args.device == "cuda":
        from on_gpu import attempt

        return attempt(name, way, blocks, args.batch or BATCH[name], args.steps)
    import torch
    from on_cpu import measure

    torch.set_num_threads(args.threads)
    return measure(name, way, blocks, args.batch or BATCH[name], args.steps)


def one(name: str, way: str, blocks: int, args: argparse.Namespace) -> Row:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", way, "--device", args.device, "--network", name]
    command += ["--blocks", str(blocks), "--steps", str(args.steps)]
    command += ["--threads", str(args.threads), "--batch", str(args.batch or BATCH[name])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ, timeout=args.limit
        )
    except subprocess.TimeoutExpired:
        return {"error": over_limit(args.limit)}
    return row_of(done, args.device)


def row_of(done: subprocess.CompletedProcess[str], device: str) -> Row:
    """What a process printed, or `error`: how it ended. On a GPU `said` is what Reprise logged."""
    lines = done.stderr.strip().splitlines()
    row: Row
    if done.returncode == 0:
        row = json.loads(done.stdout.splitlines()[-1])
    else:
        row = {"error": (lines or ["no message"])[-1][:300]}
    if done.returncode < 0:
        row["error"] = f"ended by {signal.Signals(-done.returncode).name}: {row['error']}"
    said = [line for line in lines if line.startswith("reprise:")]
    return row | ({"said": said} if said and device == "cuda" else {})


def rows(name: str, blocks: int, args: argparse.Namespace) -> Iterator[Row]:
    """The rows of one network of one depth, each as soon as it is known."""
    found: dict[str, Row] = {}
    for way in wanted(args.ways, args.device):
        within = budget(way, found) if is_reprise(way) else None
        if is_reprise(way) and within is None:
            target = way.partition("@")[2].replace("tenth", "plain")
            row = {"error": f"not run: {target} has no peak to take the budget from"}
        else:
            row = one(name, way if within is None else str(within), blocks, args)
        found[way] = row
        if args.device == "cuda" and "step_ns" in row:
            if "step_ns" in found["plain"]:
                row["plain_ns"] = found["plain"]["step_ns"]
            row["bits"] = bits(way, found)
        about = {"network": name, "way": way, "blocks": blocks}
        line = about | {"batch": args.batch or BATCH[name]} | row
        print(told(line, found["plain"], args), flush=True)
        yield line


def told(row: Row, plain: Row, args: argparse.Namespace) -> str:
    """A row as a line for the terminal."""
    line = f"{row['network']} {row['blocks']:4} {row['way']:14} "
    if not is_measured(row):
        return line + str(row.get("error") or row["sentence"])
    line += f"peak {row['peak_bytes'] / 2**20:8.1f} MiB  "
    if "plain_ns" in row:
        line += f"step {added(row):+7.1%} of {row['plain_ns'] / 1e6:.1f} ms  "
    else:
        line += f"step {row['step_ns'] / 1e6:.1f} ms  "
    if args.device == "cuda":
        return line + (f"bits {row['bits']}" if row["bits"] else "")
    equal = row["losses"][: args.steps] == plain.get("losses", [])[: args.steps]
    return line + f"losses {'equal' if equal else 'differ'}"


def plots(name: str, lines: list[Row], args: argparse.Namespace) -> None:
    """The two plots of one network."""
    series: dict[str, dict[str, list[tuple[float, float]]]] = {"peak": {}, "time": {}}
    for row in lines:
        if not is_measured(row) or row["way"] not in STYLES:
            continue
        peak = (row["blocks"], row["peak_bytes"] / 2**20)
        series["peak"].setdefault(row["way"], []).append(peak)
        if "plain_ns" in row:
            ratio = (row["blocks"], row["step_ns"] / row["plain_ns"])
            series["time"].setdefault(row["way"], []).append(ratio)
    clock = "GPU" if args.device == "cuda" else "CPU"
    titles = {
        "peak": f"{name}: peak of a training step, MiB",
        "time": f"{name}: {clock} time of a training step, times that of plain PyTorch",
    }
    axis = "residual blocks" if name == "resnet" else "layers"
    for kind, title in titles.items():
        if series[kind]:
            plot(args.out.with_suffix(f".{name}.{kind}.svg"), title, axis, series[kind])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--network", nargs="+", choices=sorted(BLOCKS), default=sorted(BLOCKS))
    parser.add_argument("--batch", type=int, help="the original figure: resnet 1280")
    parser.add_argument("--blocks", type=int, nargs="+", help="resnet: multiples of 3")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, help="also runs what they need; default: all"
    )
    parser.add_argument("--steps", type=int, help="that are measured; default: 4, on a GPU 5")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; nothing on a GPU")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="ends a way that takes more")
    parser.add_argument("--out", type=Path, default=Path("headline"))
    # A way, or a budget in bytes: prints its row, in this process.
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.steps = args.steps or STEPS[args.device]
    if "resnet" in args.network and any(n < 3 or n % 3 for n in args.blocks or ()):
        parser.error("--blocks: three stages of equal depth need multiples of 3")
    return args


def about_run(args: argparse.Namespace) -> Row:
    """When, where and how. Raises SystemExit if there is no such device."""
    about: Row = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "command": " ".join(["python", *sys.argv]),
    }
    if args.device == "cpu":
        return about
    from on_gpu import card as card_of

    card = card_of()
    if "error" in card:
        raise SystemExit(f"--device cuda: {card['error']}")
    return about | {"device": "cuda", "steps": args.steps} | card


def main() -> int:
    args = parsed()
    if args.one:
        name = args.network[0]
        print(json.dumps(here(name, args.one, (args.blocks or BLOCKS[name])[0], args)))
        return 0
    # A daemon of its own, whoever else runs one.
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    (folder / "run").mkdir(mode=0o700)
    os.environ.update(XDG_RUNTIME_DIR=str(folder / "run"), XDG_STATE_HOME=str(folder / "state"))
    os.environ.setdefault("REPRISE_LINGER", "60")  # it goes soon after the last way has ended
    about = about_run(args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines: list[Row] = []
    with args.out.with_suffix(".jsonl").open("w") as out:
        print(json.dumps(about), file=out, flush=True)
        for name in args.network:
            for blocks in args.blocks or BLOCKS[name]:
                for line in rows(name, blocks, args):
                    lines.append(line)
                    print(json.dumps(line), file=out, flush=True)
                    args.out.with_suffix(".md").write_text(summary(about, lines))
            plots(name, [line for line in lines if line["network"] == name], args)
    print(summary(about, lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
