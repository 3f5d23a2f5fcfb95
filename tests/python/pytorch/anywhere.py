# SPDX-License-Identifier: Apache-2.0
"""Random schedules for an executor that can do everything: storages are freed at any time and
recomputed when they are read, in the forward and in the backward, by whatever made them, any number
of times."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import referee

Graph = dict[str, Any]

_AGAIN = ("OP_KIND_PURE", "OP_KIND_SEEDED")


def plan(graph: Graph, seed: int, policy: str, rate: float = 0.12) -> list[int]:
    """Returns a valid schedule. After every op, each storage that is read later is freed with this
    probability."""
    rng = random.Random(seed)
    ops = graph["ops"]
    needed = referee.versions_needed(graph)
    makers: dict[int, list[int]] = defaultdict(list)
    last_read: dict[int, int] = {}
    for o, op in enumerate(ops):
        for s in (*op["writes"], *op["mutates"]):
            makers[s].append(o)
        for s in op["reads"]:
            last_read[s] = o
    may = {s for s in last_read if all(ops[o]["kind"] in _AGAIN for o in makers[s])}
    # Making one output of an op again would rewind another that is kept and was written since.
    for op in ops:
        if any(s not in may and len(makers[s]) > 1 for s in op["writes"]):
            may -= set(op["writes"])
    held = {s: graph["storages"][s]["release_op"] if policy == "program" else 0 for s in may}
    execs: list[int] = []
    present: dict[int, int] = {}
    for o, op in enumerate(ops):
        referee.restore(o, graph, needed, makers, may, present, execs)
        execs.append(o)
        for s in op["writes"]:
            present[s] = 1
        for s in op["mutates"]:
            present[s] += 1
        for s in sorted(may & present.keys()):
            if held[s] <= o < last_read[s] and rng.random() < rate:
                del present[s]
    return referee.with_frees(_policy(graph, policy), execs)


def _policy(graph: Graph, policy: str) -> Graph:
    """Frees eagerly: `with_frees` otherwise holds first lives to their release."""
    if policy == "program":
        return graph
    return {**graph, "storages": [{**s, "release_op": 0} for s in graph["storages"]]}


def most_runs(schedule: list[int]) -> int:
    """Returns how often the op runs that runs most often."""
    return max(Counter(e for e in schedule if e >= 0).values())


def runs_backward_again(graph: Graph, schedule: list[int]) -> bool:
    """Returns whether an op of the backward runs twice."""
    runs = Counter(e for e in schedule if e >= 0)
    return any(n > 1 and graph["ops"][o]["phase"] == "PHASE_BACKWARD" for o, n in runs.items())
