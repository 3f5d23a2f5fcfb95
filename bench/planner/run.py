#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The planner beside its peers: plans per graph and budget with bound, gap, time and memory.

  bench/planner/run.py --graphs FOLDER              the standard set, ten minutes at most
  bench/planner/run.py --graphs FOLDER --full       every budget, more seconds for the peers
  bench/planner/run.py --tables scale,chains        tables that need no outside file
  bench/planner/run.py --graphs FOLDER --peers none

FOLDER holds public step graphs in reprise.graph/1 (checkmate_*, layered_*, trace_*). Peers that
are installed run on the same graphs in the same call, one after the other; those that are not are
named. A peer's schedule is walked by the independent referee of tests/cli. Overheads are in % of
base time. What is printed is also written to bench/results/planner-DATE.md (--out; not with
--quick).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))
import graphs
import ours

HERE = Path(__file__).resolve().parent
PEERS = ["checkmate_ilp", "moccasin", "torch_knapsack", "torch_sac"]
NAMED = ["memory", "per-block"]

Cell = tuple[str, str]
CHECKMATE: list[Cell] = [
    (f"checkmate_{name}", f"0.{tenth}x")
    for name in ("vgg16", "unet", "fcn8", "mobilenet", "resnet50")
    for tenth in (9, 8, 7, 6, 5, 4)
]
# Besides these the standard set has every layered graph and trace.
STANDARD_BUDGETS = ("0.9x", "0.7x", "0.5x", "0.4x")
SIZES = [1000, 3000, 10_000, 30_000, 100_000]
TIGHT_SIZES = [1000, 10_000, 100_000]
STANDARD_PEER_S = 5.0
FULL_PEER_S = 30.0
LAYERED: list[Cell] = [(f"layered_{n}", b) for b in ("0.9x", "0.8x") for n in (100, 500)]
TRACE_BUDGETS = {
    "resnet32": [8055999692, 6050912665, 4045825638, 3043282124],
    "transformer": [7943802060, 6023649689, 4103497318, 3143421132],
    "densenet121": [8832994508, 6645455257, 4457916006, 3364146380],
    "lstm": [4514958540, 3434715545, 2354472550, 1814351052],
}
TRACES: list[Cell] = [(f"trace_{n}", str(b)) for n, all_b in TRACE_BUDGETS.items() for b in all_b]
CHAINS = [(16, 4), (64, 4), (64, 8), (256, 8), (1000, 10), (1000, 30), (10000, 100)]
TABLES = ["checkmate", "layered", "traces", "chains", "scale", "blocks", "sweep"]
SWEPT = [(kind, n) for n in (1000, 10_000) for kind in ("transformer", "resnet", "unet", "moe")]
BLOCKS = [(kind, b) for kind in ("transformer", "resnet", "unet", "moe") for b in ("0.3x", "0.2x")]


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.reprise: str = arguments.reprise
        self.graphs: Path | None = arguments.graphs
        self.peers: list[str] = arguments.peers
        self.peer_seconds: float = arguments.peer_seconds
        self.flags: list[str] = arguments.flag
        self.published: list[dict[str, Any]] = json.loads((HERE / "published.json").read_text())[
            "cells"
        ]

    # ---- One cell ----

    def published_for(self, graph: str, budget: str) -> str:
        found = [c for c in self.published if c["graph"] == graph and c["budget"] == budget]
        return ", ".join(f"{c['peer']} {c['value']}" for c in found) or "-"

    def ours(self, path: Path, budget: str, *flags: str) -> list[str]:
        """overhead, bound, gap, seconds, those of the processor, peak RSS, by"""
        answer = ours.plan(self.reprise, str(path), budget, *self.flags, *flags)
        tail = [f"{answer.seconds:.2f}", f"{answer.cpu_seconds:.2f}"]
        tail.append(f"{answer.peak_rss_bytes / 2**20:.0f}")
        plan = answer.json
        if plan is None:
            return ["-", "-", "-", *tail, answer.error]
        if not plan["feasible"]:
            verdict = "not decided" if plan.get("undecided") else "impossible"
            return [verdict, "-", "-", *tail, f"needs {plan['smallest_budget_bytes']}"]
        overhead, bound = 100 * plan["overhead"], 100 * plan["bound"]
        by = "optimal" if plan["proven_optimal"] else plan["solver"]
        return [f"{overhead:.4f}", f"{bound:.4f}", f"{overhead - bound:.4f}", *tail, by]

    def by_name(self, path: Path, budget: str, strategy: str) -> str:
        answer = ours.plan(self.reprise, str(path), budget, "--strategy", strategy)
        plan = answer.json
        if plan is None:
            return answer.error
        return f"{100 * plan['overhead']:.2f}" if plan["feasible"] else "does not fit"

    def run_peer(self, module: str, *arguments: str) -> ours.Answer:
        """Without arguments: whether it is installed."""
        return ours.run(
            [sys.executable, "-m", "peers", module, *arguments],
            limit_s=2 * self.peer_seconds + 120,
            environment={"PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )

    def drop_absent_peers(self) -> None:
        for module in list(self.peers):
            answer = self.run_peer(module)
            why = answer.error if answer.json is None else answer.json["not_run"]
            if why:
                self.peers.remove(module)
                say(f"\nwithout {module}: {why}")

    def peer(self, module: str, path: Path, budget: str) -> str:
        answer = self.run_peer(module, str(path), budget, str(self.peer_seconds))
        got = answer.json
        if got is None:
            return answer.error
        if "not_run" in got:
            return str(got["not_run"])
        if not got["found"]:
            return f"none in {answer.seconds:.0f} s"
        text = f"{100 * got['overhead']:.4f} in {answer.seconds:.1f} s"
        over = got["peak_bytes"] / got["budget_bytes"] - 1
        return text if over <= 0 else f"{text}, {100 * over:.1f} % over the budget"

    # ---- Tables ----

    def cells(self, title: str, cells: list[Cell], *flags: str) -> None:
        heading(title)
        if self.graphs is None:
            say("skipped: --graphs names no folder")
            return
        head = ["graph", "budget", "overhead", "bound", "gap pp", "s", "cpu s", "MiB", "by"]
        table([*head, "published", *NAMED, *self.peers])
        for graph, budget in cells:
            path = self.graphs / f"{graph}.json"
            if not path.exists():
                row([graph, budget, "absent"])
                continue
            found = [graph, budget, *self.ours(path, budget, *flags)]
            found.append(self.published_for(graph, budget))
            found += [self.by_name(path, budget, strategy) for strategy in NAMED]
            found += [self.peer(module, path, budget) for module in self.peers]
            row(found)

    def chains(self, chains: list[tuple[int, int]], folder: Path) -> None:
        heading("chains: extra advances against Revolve with s checkpoints, and Chen's sqrt(n)")
        table(["steps", "slots", "Revolve", "ours", "bound", "s", "cpu s", "MiB", "by"])
        for length, slots in chains:
            graph = graphs.chain(length)
            path = folder / f"chain-{length}.json"
            path.write_text(json.dumps(graph))
            size = graph["storages"][0]["bytes"]
            # Besides the checkpoints, the state that advances and the next one.
            got = self.ours(path, str((slots + 2) * size), "--gap", "0%")
            _, base_time = graphs.base(graph)
            to_advances = base_time / 1000 / 100
            for i in (0, 1):
                with contextlib.suppress(ValueError):
                    got[i] = f"{float(got[i]) * to_advances:.0f}"
            extra = str(graphs.revolve_extra(length, slots))
            row([str(length), str(slots), extra, got[0], got[1], *got[3:]])

    def made(self, kind: str, size: int, folder: Path) -> Path:
        """A generated step graph in a file; not read here: what this process has in memory counts
        as its children's, too."""
        path = folder / f"{kind}-{size}.json"
        if not path.exists():
            generate = Path(self.reprise).with_name("generate")
            command = [generate, kind, "--ops", str(size), "--out", str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        return path

    def scale(self, sizes: list[int], folder: Path) -> None:
        heading("scale: generated transformers at 50 %, --gap 1% (2% from 100,000 ops)")
        table(["ops", "overhead", "bound", "gap pp", "s", "cpu s", "MiB", "by", "bound alone s"])
        times: list[tuple[int, float]] = []
        for size in sizes:
            path = self.made("transformer", size, folder)
            gap = "2%" if size >= 100_000 else "1%"
            limit = ["--gap", gap, "--time-limit", "120s"]
            got = self.ours(path, "0.5x", *limit, "--executor", "free:seeded_ok=1")
            bound = ours.plan(self.reprise, str(path), "0.5x", "--strategy", "save-all")
            bound_s = f"{bound.json['solve_ms'] / 1000:.3f}" if bound.json else bound.error
            row([str(size), *got, bound_s])
            times.append((size, float(got[4])))
        if len(times) > 1:
            say(f"\nprocessor time grows with ops to the power {exponent(times):.2f}")
        scale = json.loads((HERE / "published.json").read_text())["scale"]
        for peer in scale:
            say(f"{peer['peer']}: {peer['value']} ({peer['source']})")

    def blocks(self, cells: list[Cell], sizes: list[int], folder: Path) -> None:
        heading("repeated blocks at tight budgets: generated steps, --gap 0.1%, ten seconds")
        head = ["kind", "ops", "budget", "overhead", "bound", "gap pp", "s", "cpu s", "MiB", "by"]
        table(head + NAMED)
        for kind, budget in cells:
            for size in sizes:
                path = self.made(kind, size, folder)
                limit = ["--time-limit", "10s", "--executor", "free:seeded_ok=1"]
                found = [kind, str(size), budget, *self.ours(path, budget, *limit)]
                row(found + [self.by_name(path, budget, strategy) for strategy in NAMED])

    def sweep(self, cells: list[tuple[str, int]], folder: Path) -> None:
        heading("sweep: 21 budgets beside one plan, seconds of the processor")
        table(["kind", "ops", "fit", "cheapest", "costliest", "sweep", "x costliest"])
        for kind, size in cells:
            path = self.made(kind, size, folder)
            swept = ours.sweep(self.reprise, str(path))
            if swept.json is None:
                row([kind, str(size), swept.error])
                continue
            # Not the largest, at which nothing has to be planned.
            plans = [
                ours.plan(self.reprise, str(path), budget).cpu_seconds
                for budget in list(swept.json)[1::3]
            ]
            fit = sum(point["feasible"] for point in swept.json.values())
            times = [f"{s:.2f}" for s in (min(plans), max(plans), swept.cpu_seconds)]
            row([kind, str(size), str(fit), *times, f"{swept.cpu_seconds / max(plans):.1f}"])


def exponent(times: list[tuple[int, float]]) -> float:
    """Slope of log time over log ops, least squares."""
    xs = [math.log(n) for n, _ in times]
    ys = [math.log(max(t, 1e-3)) for _, t in times]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


# What is printed goes here too.
also: list[TextIO] = []


def say(line: str) -> None:
    print(line, flush=True)
    for file in also:
        print(line, file=file, flush=True)


def heading(title: str) -> None:
    say(f"\n## {title}\n")


def table(head: list[str]) -> None:
    row(head)
    row(["---"] * len(head))


def row(cells: list[str]) -> None:
    say("| " + " | ".join(cells) + " |")


def load() -> str:
    """The load and, where it is high, what that means for the figures."""
    cores = len(os.sched_getaffinity(0))
    now = os.getloadavg()[0]
    text = f"load {now:.1f} on {cores} cores"
    if now > 1.5:
        text += ": busy with other work, so the clock's seconds are too many"
    return text


def machine() -> Iterator[str]:
    yield datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    yield f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    yield f"at the start {load()}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", type=Path, help="folder of public step graphs")
    parser.add_argument("--reprise", default=str(graphs.ROOT / "build" / "bin" / "reprise"))
    parser.add_argument("--tables", default=",".join(TABLES), help=", ".join(TABLES))
    parser.add_argument("--peers", default=",".join(PEERS), help="or none")
    parser.add_argument("--peer-seconds", type=float, help="limit of each peer (5; --full: 30)")
    parser.add_argument("--quick", action="store_true", help="the smallest of each table, no file")
    parser.add_argument("--full", action="store_true", help="every budget, longer limits")
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument(
        "--flag", action="append", default=[], help="passed to reprise plan: --flag=--threads=2"
    )
    arguments = parser.parse_args()
    arguments.peers = [] if arguments.peers == "none" else arguments.peers.split(",")
    tables = arguments.tables.split(",")
    for name in tables:
        if name not in TABLES:
            parser.error(f"--tables {name}: must be among {', '.join(TABLES)}")
    for name in arguments.peers:
        if name not in PEERS:
            parser.error(f"--peers {name}: must be none or among {', '.join(PEERS)}")
    if not os.access(arguments.reprise, os.X_OK):
        parser.error(f"--reprise {arguments.reprise}: not built; run scripts/build")
    if arguments.peer_seconds is None:
        arguments.peer_seconds = FULL_PEER_S if arguments.full else STANDARD_PEER_S
    out: Path | None = arguments.out
    if out is None and not arguments.quick:
        day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        out = graphs.ROOT / "bench" / "results" / f"planner-{day}.md"
    with contextlib.ExitStack() as files, tempfile.TemporaryDirectory() as folder:
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            also.append(files.enter_context(out.open("w")))
        tell(arguments, tables, Path(folder))
    if out is not None:
        print(f"\nwritten to {out}")
    return 0


def tell(arguments: argparse.Namespace, tables: list[str], folder: Path) -> None:
    first = 1 if arguments.quick else None
    bench = Bench(arguments)
    say("# The planner beside its peers\n")
    say("; ".join(machine()))
    # Paths of this machine say nothing to the next.
    named = ["--graphs", "FOLDER"] if arguments.graphs else []
    flags = ["--full"] if arguments.full else []
    flags += [] if arguments.peers else ["--peers", "none"]
    say(
        "\n`"
        + shlex.join(["bench/planner/run.py", *named, *flags])
        + "`: tables "
        + ", ".join(tables)
    )
    if {"checkmate", "layered", "traces"} & set(tables) and arguments.graphs:
        bench.drop_absent_peers()
    cells = [c for c in CHECKMATE if arguments.full or c[1] in STANDARD_BUDGETS]
    if "checkmate" in tables:
        bench.cells("Checkmate's training graphs", cells[:first])
    if "layered" in tables:
        title = "random layered graphs, --gap 0.1%, thirty seconds, two threads"
        limits = ["--gap", "0.1%", "--time-limit", "30s", "--threads", "2"]
        bench.cells(title, LAYERED[:first], *limits)
    if "traces" in tables:
        title = "traces of the online method, --gap 0.1%, ten seconds"
        bench.cells(title, TRACES[:first], "--gap", "0.1%", "--time-limit", "10s")
    if "chains" in tables:
        bench.chains(CHAINS[:first], folder)
    if "scale" in tables:
        bench.scale(SIZES[:first], folder)
    if "blocks" in tables:
        bench.blocks(BLOCKS[:first], TIGHT_SIZES[: 3 if arguments.full else 2][:first], folder)
    if "sweep" in tables:
        bench.sweep(SWEPT[:first], folder)
    say(f"\nat the end {load()}")


if __name__ == "__main__":
    sys.exit(main())
