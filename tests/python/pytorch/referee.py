# SPDX-License-Identifier: Apache-2.0
"""A second, small implementation of the planner's evaluator, and plans to test executors with. It
is independent of the C++ one on purpose: what these tests predict and what the executor does must
agree on their own."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

Graph = dict[str, Any]


class Invalid(Exception):
    """The schedule cannot run."""


def _needs(op: dict[str, Any]) -> list[int]:
    return list(op["reads"])


def versions_needed(graph: Graph) -> list[dict[int, int]]:
    """Returns by op the version of every storage that it reads, in base order."""
    current: dict[int, int] = {}
    needed = []
    for op in graph["ops"]:
        needed.append({s: current[s] for s in op["reads"]})
        for s in op["writes"]:
            current[s] = 1
        for s in op["mutates"]:
            current[s] += 1
    return needed


def evaluate(graph: Graph, schedule: list[int]) -> tuple[int, int, list[int]]:
    """Returns peak, time and bytes at every exec; raises `Invalid` at the first error."""
    needed = versions_needed(graph)
    storages, ops = graph["storages"], graph["ops"]
    present: dict[int, int] = {}
    ran = [0] * len(ops)
    total = [schedule.count(o) for o in range(len(ops))] if len(ops) < 500 else None
    if total is None:
        total = [0] * len(ops)
        for entry in schedule:
            if entry >= 0:
                total[entry] += 1
    live = graph["static_bytes"]
    peak = time = 0
    profile = []
    base = 0
    for entry in schedule:
        if entry < 0:
            storage = -entry - 1
            if storage not in present:
                raise Invalid(f"storage {storage} is freed twice")
            del present[storage]
            live -= storages[storage]["bytes"]
            continue
        op = ops[entry]
        if ran[entry] == 0:
            if entry != base:
                raise Invalid(f"op {entry} runs before op {base}")
            base += 1
        elif op["kind"] not in ("OP_KIND_PURE", "OP_KIND_SEEDED"):
            raise Invalid(f"op {entry} may not run again")
        ran[entry] += 1
        for storage, version in needed[entry].items():
            if present.get(storage) != version:
                raise Invalid(
                    f"op {entry} needs storage {storage}@{version}, {present.get(storage)}"
                )
        extra = op["workspace_bytes"]
        for storage in op["writes"]:
            if storage in present:
                if present[storage] != 1:
                    raise Invalid(
                        f"op {entry} writes storage {storage}, present at another version"
                    )
                extra += storages[storage]["bytes"]
            else:
                live += storages[storage]["bytes"]
                present[storage] = 1
        for storage in op["mutates"]:
            present[storage] += 1
        state = op.get("state_bytes", 0)
        if ran[entry] == 1 and total[entry] > 1:
            live += state
        peak = max(peak, live + extra)
        profile.append(live + extra)
        if ran[entry] == total[entry] and total[entry] > 1:
            live -= state
        time += op.get("again_ns", op["time_ns"]) if ran[entry] > 1 else op["time_ns"]
    if base != len(ops):
        raise Invalid("not every op ran")
    for storage in graph["required"]:
        if storage not in present:
            raise Invalid(f"storage {storage} is required at the end")
    return peak, time, profile


def with_frees(graph: Graph, execs: list[int], drop: set[int] | None = None) -> list[int]:
    """Completes execs with frees by the policy `program`. A storage is freed after the last reader
    before it is written again (or ever), a first life also not before its release op."""
    ops, storages = graph["ops"], graph["storages"]
    required = set(graph["required"])
    uses: dict[int, list[tuple[int, bool]]] = defaultdict(list)  # (position, writes?)
    first_run: dict[int, int] = {}
    for position, o in enumerate(execs):
        first_run.setdefault(o, position)
        for s in ops[o]["writes"]:
            uses[s].append((position, True))
        for s in ops[o]["reads"]:
            uses[s].append((position, False))
    frees: dict[int, list[int]] = defaultdict(list)
    for s, events in uses.items():
        events.sort()
        lives: list[tuple[int, int]] = []  # (born, last use)
        for position, writes in events:
            if writes:
                lives.append((position, position))
            else:
                lives[-1] = (lives[-1][0], position)
        release = first_run[min(storages[s]["release_op"], len(ops) - 1)]
        # A write into a life that is still held adds nothing to it.
        merged = [lives[0]]
        hold = max(lives[0][1], release)
        for life in lives[1:]:
            if storages[s]["pinned"] or (len(merged) == 1 and life[0] <= hold):
                hold = max(hold, life[1])
                merged[0] = (merged[0][0], hold)
            else:
                merged.append(life)
        for k, (_, last) in enumerate(merged):
            end = max(last, release) if k == 0 else last
            if k == len(merged) - 1 and s in required:
                continue
            frees[end].append(s)
    schedule: list[int] = []
    for position, o in enumerate(execs):
        schedule.append(o)
        schedule += [-s - 1 for s in sorted(frees.get(position, ()))]
    return schedule


def base_schedule(graph: Graph) -> list[int]:
    return with_frees(graph, list(range(len(graph["ops"]))))


def random_plan(
    graph: Graph, seed: int, share: float = 0.6, again: float = 0.3, late: bool = False
) -> list[int]:
    """A valid schedule that drops random forward storages before the backward and makes them again
    when they are read. `again`: how often a re-created one is dropped at once after its use.
    `late`: so is what is not re-created, and nothing is dropped before."""
    rng = random.Random(seed)
    ops, storages = graph["ops"], graph["storages"]
    needed = versions_needed(graph)
    makers: dict[int, list[int]] = defaultdict(list)  # storage -> creating op, mutating ops
    readers: dict[int, list[int]] = defaultdict(list)
    for o, op in enumerate(ops):
        for s in op["writes"]:
            makers[s].append(o)
        for s in op["mutates"]:
            makers[s].append(o)
        for s in op["reads"]:
            readers[s].append(o)
    backward = next((o for o, op in enumerate(ops) if op["phase"] == "PHASE_BACKWARD"), len(ops))
    may = ("OP_KIND_PURE", "OP_KIND_SEEDED")
    droppable = set()
    for s, storage in enumerate(storages):
        if storage["pinned"] or s in graph["required"] or storage["release_op"] >= backward:
            continue
        if not readers[s] or max(readers[s]) < backward:
            continue
        if rng.random() < share and all(ops[o]["kind"] in may for o in makers[s]):
            droppable.add(s)
    # Making one output of an op again would rewind another that is kept and was written since.
    for op in ops:
        kept = [s for s in op["writes"] if s not in droppable and len(makers[s]) > 1]
        if kept:
            droppable -= set(op["writes"])
    execs: list[int] = []
    present: dict[int, int] = {}
    for o in range(len(ops)):
        if o >= backward:
            restore(o, graph, needed, makers, droppable, present, execs)
        execs.append(o)
        for s in ops[o]["writes"]:
            present[s] = 1
        for s in ops[o]["mutates"]:
            present[s] += 1
        if o + 1 == backward:
            for s in () if late else droppable:
                present.pop(s, None)
        elif o >= backward:
            for s in ops[o]["reads"]:
                if s in droppable and rng.random() < again:
                    present.pop(s, None)
    return with_frees(graph, execs)


def restore(
    o: int,
    graph: Graph,
    needed: list[dict[int, int]],
    makers: dict[int, list[int]],
    droppable: set[int],
    present: dict[int, int],
    execs: list[int],
) -> None:
    """Runs what op o needs and does not find, deepest first."""
    ops = graph["ops"]
    todo: list[tuple[int, int]] = []
    while True:
        if not todo:
            todo = [(s, v) for s, v in needed[o].items() if present.get(s) != v]
            if not todo:
                return
        s, v = todo[-1]
        if present.get(s) == v:
            todo.pop()
            continue
        if present.get(s, 0) > v:
            present.pop(s)
        start = present.get(s, 0)
        maker = makers[s][start]
        missing = [(t, w) for t, w in needed[maker].items() if t != s and present.get(t) != w]
        if missing:
            if len(todo) > 100_000:
                raise Invalid("cannot restore")
            todo += missing
            continue
        execs.append(maker)
        for t in ops[maker]["writes"]:
            if t in present and present[t] != 1 and t not in droppable:
                raise Invalid("version clash")
            present[t] = 1
        for t in ops[maker]["mutates"]:
            present[t] += 1


def wasteful_plan(graph: Graph, schedule: list[int], seed: int, rate: float = 0.3) -> list[int]:
    """The schedule with runs in the backward that nobody asked for: valid, as the planner's are
    when they make a storage once more than it is read. They read what is there in a later life,
    and leave what they make until somebody else makes it, or let it go at once."""
    rng = random.Random(seed)
    ops, needed = graph["ops"], versions_needed(graph)
    kinds = ("OP_KIND_PURE", "OP_KIND_SEEDED")
    may = [o for o, op in enumerate(ops) if op["phase"] == "PHASE_FORWARD" and op["kind"] in kinds]
    backward = [o for o, op in enumerate(ops) if op["phase"] == "PHASE_BACKWARD" and op["reads"]]
    present: dict[int, int] = {}
    lives: dict[int, int] = defaultdict(int)
    out: list[int] = []
    extra: set[int] = set()  # made by a run of ours

    def run(o: int, ours: bool) -> None:
        for s in ops[o]["writes"]:
            if s not in present:
                present[s] = 1
                lives[s] += 1
                if ours:
                    extra.add(s)
        for s in ops[o]["mutates"]:
            present[s] += 1
        out.append(o)

    def free(s: int) -> None:
        del present[s]
        extra.discard(s)
        out.append(-s - 1)

    def possible(o: int) -> bool:
        op = ops[o]
        return (
            all(present.get(s) == v for s, v in needed[o].items())
            and all(present.get(s, 1) == 1 for s in op["writes"])
            and all(s in extra and lives[s] > 1 for s in op["mutates"])
        )

    reached = 0
    for entry in schedule:
        if entry < 0:
            if -entry - 1 in present:
                free(-entry - 1)
            continue
        while backward[0] < reached <= backward[-1] and rng.random() < rate:
            some = rng.sample(may, min(30, len(may)))
            if rng.random() < 0.7:
                some.sort(key=lambda o: -sum(lives[s] > 1 for s in needed[o] if s in present))
            found = next((o for o in some if possible(o)), None)
            if found is not None:
                run(found, ours=True)
            for s in sorted(extra):
                if rng.random() < 0.3:
                    free(s)
        for s in ops[entry]["writes"]:
            if s in extra:
                if present[s] == 1:
                    extra.discard(s)  # the schedule goes on with ours
                else:
                    free(s)
        run(entry, ours=False)
        reached = max(reached, entry + 1)
    for s in sorted(extra):
        free(s)
    return out
