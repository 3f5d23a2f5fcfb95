# SPDX-License-Identifier: Apache-2.0
"""Step graphs for the benchmark: reading, chains, budgets, and schedules from peers' answers.

The referee of every peer is tests/cli/check_plan.py, which shares no code with the planner.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from check_plan import walk  # noqa: E402

Graph = dict[str, Any]


def read(path: Path) -> Graph:
    graph: Graph = json.loads(path.read_text())
    return graph


def with_frees(graph: Graph, execs: list[int]) -> list[list[Any]]:
    """The schedule of a list of execs: what has no later reader before it is made again goes."""
    ops = graph["ops"]
    required = set(graph["required"])
    free_after: list[list[int]] = [[] for _ in execs]
    next_use: dict[int, str] = {}
    for at in range(len(execs) - 1, -1, -1):
        op = ops[execs[at]]
        for s in {*op["reads"], *op["writes"], *op["mutates"]}:
            # The last touch of a life: nothing reads it before its next creation.
            after = next_use.get(s)
            if after == "made" or (after is None and s not in required):
                free_after[at].append(s)
        for s in op["writes"]:
            next_use[s] = "made"
        for s in (*op["reads"], *op["mutates"]):
            next_use[s] = "read"
    schedule: list[list[Any]] = []
    for at, o in enumerate(execs):
        schedule.append(["exec", o])
        schedule += [["free", s] for s in sorted(free_after[at])]
    return schedule


def evaluate(graph: Graph, execs: list[int]) -> tuple[int, int]:
    """Peak bytes and time of a list of execs; raises where it is not valid."""
    peak, time = walk(graph, with_frees(graph, execs))
    return peak, time


def base(graph: Graph) -> tuple[int, int]:
    return evaluate(graph, list(range(len(graph["ops"]))))


def budget_bytes(graph: Graph, budget: str) -> int:
    """ "0.9x" or bytes."""
    if not budget.endswith("x"):
        return int(budget)
    static = int(graph["static_bytes"])
    return static + math.floor(float(budget[:-1]) * (base(graph)[0] - static))


def may_repeat(op: Graph) -> bool:
    return op["kind"] in ("pure", "view")


def boundary(graph: Graph) -> int:
    """The first op that is not of the forward; traces have forward ops after it, too."""
    ops = graph["ops"]
    return next((o["id"] for o in ops if o["phase"] != "forward"), len(ops))


def recompute_all_but(graph: Graph, saved: set[int]) -> list[int]:
    """What a framework does with a set of saved storages: the rest is made when first needed.

    Execs: the base order, before each backward op the makers of its absent inputs, depth first.
    What nobody may make again is saved too.
    """
    ops = graph["ops"]
    maker = {s: o["id"] for o in ops for s in o["writes"]}
    forward = set(range(boundary(graph)))
    mutated = {s for o in ops for s in o["mutates"]}
    keep = saved | mutated | {s for s, o in maker.items() if not may_repeat(ops[o])}
    execs = sorted(forward)
    made: set[int] = set()

    def make(storage: int) -> None:
        stack = [storage]
        while stack:
            s = stack[-1]
            if s in keep or s in made or maker[s] not in forward:
                stack.pop()
                continue
            absent = [
                r
                for r in ops[maker[s]]["reads"]
                if r not in keep and r not in made and maker[r] in forward
            ]
            if absent:
                stack += absent
                continue
            execs.append(maker[s])
            made.update(ops[maker[s]]["writes"])
            stack.pop()

    for op in ops:
        if op["id"] in forward:
            continue
        for s in op["reads"]:
            make(s)
        execs.append(op["id"])
    return execs


def candidates(graph: Graph) -> list[int]:
    """Forward storages that the backward reads and that may be made again."""
    ops = graph["ops"]
    maker = {s: o for o in ops for s in o["writes"]}
    mutated = {s for o in ops for s in o["mutates"]}
    first = boundary(graph)
    read_back = {s for o in ops[first:] for s in o["reads"]}
    return sorted(
        s for s in read_back if maker[s]["id"] < first and may_repeat(maker[s]) and s not in mutated
    )


def chain(length: int, activation_bytes: int = 1 << 20) -> Graph:
    """A uniform chain as Revolve has it: `length` steps, each reversed once.

    x_0 is given; step i makes x_i from x_(i-1) in 1000 ns; the reversal of step i reads x_(i-1)
    and the gradient of x_i (no bytes), and its own forward is part of it.
    """
    storages = [{"id": i, "bytes": activation_bytes} for i in range(length)]
    ops: list[Graph] = []

    def add(name: str, phase: str, kind: str, time: int, reads: list[int], writes: int) -> None:
        ops.append(
            {
                "id": len(ops),
                "name": name,
                "phase": phase,
                "kind": kind,
                "time_ns": time,
                "workspace_bytes": 0,
                "reads": reads,
                "writes": [writes],
                "mutates": [],
                "module": f"steps.{writes}" if phase == "forward" else "",
            }
        )

    add("x0", "forward", "once", 0, [], 0)
    for i in range(1, length):
        add("advance", "forward", "pure", 1000, [i - 1], i)
    for i in range(length, 0, -1):
        storages.append({"id": len(storages), "bytes": 0})
        gradient = [len(storages) - 2] if i < length else []
        add("reverse", "backward", "once", 1000, [i - 1, *gradient], len(storages) - 1)
    return {
        "format": "reprise.graph/1",
        "name": f"chain-{length}",
        "source": "bench/planner",
        "note": "",
        "static_bytes": 0,
        "required": [len(storages) - 1],
        "storages": storages,
        "ops": ops,
    }


def revolve_extra(length: int, slots: int) -> int:
    """Advances beyond the first forward that Revolve needs with `slots` checkpoints.

    Griewank and Walther, 2000: t(l, s) = r l - C(s + r, s + 1), r least with C(s + r, s) >= l;
    the forward itself has l - 1 advances.
    """
    repeats = 0
    while math.comb(slots + repeats, slots) < length:
        repeats += 1
    return repeats * length - math.comb(slots + repeats, slots + 1) - (length - 1)
