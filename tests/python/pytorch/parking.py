# SPDX-License-Identifier: Apache-2.0
"""Schedules that send storages to host memory, at random; what they need at every op; and tapes
that run them."""

from __future__ import annotations

import random
from typing import Any

from jobs import CapturedGraph, Tape, compile_plan
from referee import Graph

from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.offload.tier import Tier
from reprise.torch.tape.compile_copies import staying

SEND, SENT, FETCH, FETCHED = (lambda s, k=k: -1 - s - (k << 24) for k in range(1, 5))
FAST = 20_000_000_000  # bytes per second: as quick as two threads copy


def movable(graph: CapturedGraph) -> set[int]:
    """Returns what a tape can send, however small."""
    return set(range(len(graph.storages))) - staying(graph, least_bytes=1)


def parked(
    graph: Graph, schedule: list[int], may: set[int], seed: int, share: float = 0.7
) -> tuple[list[int], set[int]]:
    """Returns the schedule with random storages on the host between two of their uses, and which
    these are."""
    rng = random.Random(seed)
    ops, storages = graph["ops"], graph["storages"]
    found: dict[int, list[int]] = {}  # position -> entries right before it
    moved = set()
    for s in sorted(may):
        if rng.random() > share:
            continue
        gaps = _gaps(s, ops, storages, schedule)
        if not gaps:
            continue
        made, chosen = gaps[0][0], [gap for gap in gaps if rng.random() < 0.8]
        for number, (_, first, last) in enumerate(chosen):
            leaves = rng.randint(first, last)
            comes = rng.randint(leaves, last)
            if number == 0:
                found.setdefault(made + 1, []).append(SEND(s))
            found.setdefault(leaves, []).append(SENT(s) if number == 0 else -1 - s)
            found.setdefault(comes, []).append(FETCH(s))
            found.setdefault(last, []).append(FETCHED(s))
            moved.add(s)
    result = []
    for position, entry in enumerate(schedule):
        result += found.get(position, ())
        result.append(entry)
    return result, moved


def _gaps(s: int, ops: Any, storages: Any, schedule: list[int]) -> list[tuple[int, int, int]]:
    """Returns the stretches of a first life in which nothing uses it, as positions: where it was
    made or written last, where it may leave, and the exec before which it must be back."""
    made = used = -1
    left = sum(s in op["mutates"] for op in ops)
    gaps = []
    for position, entry in enumerate(schedule):
        if entry == -1 - s:
            break
        if entry < 0:
            continue
        writes = s in (*ops[entry]["writes"], *ops[entry]["mutates"])
        if writes and (made < 0 or left):
            left -= s in ops[entry]["mutates"]
            made = used = position
        elif made >= 0 and not left and s in (*ops[entry]["reads"], *ops[entry]["writes"]):
            free = max(used + 1, held if (held := _held(s, storages, schedule)) else 0)
            if free < position:
                gaps.append((made, free, position))
            used = position
    return gaps


def _held(s: int, storages: Any, schedule: list[int]) -> int:
    """Returns the position behind the op until which the program holds a storage."""
    return schedule.index(storages[s]["release_op"]) + 1


def bytes_at(graph: Graph, schedule: list[int]) -> list[int]:
    """Returns the bytes alive at every exec of a schedule with copies."""
    ops, storages = graph["ops"], graph["storages"]
    present: set[int] = set()
    live, found = graph["static_bytes"], []
    total = {o: schedule.count(o) for o in {e for e in schedule if e >= 0}}
    ran: dict[int, int] = {}
    for entry in schedule:
        kind, s = divmod(-entry - 1, 1 << 24) if entry < 0 else (-1, 0)
        if kind in (0, 2):
            present.remove(s)
            live -= storages[s]["bytes"]
        elif kind == 3:
            assert s not in present
            present.add(s)
            live += storages[s]["bytes"]
        if entry < 0:
            continue
        op = ops[entry]
        ran[entry] = ran.get(entry, 0) + 1
        extra = op["workspace_bytes"]
        for made in op["writes"]:
            if made in present:
                extra += storages[made]["bytes"]
            else:
                present.add(made)
                live += storages[made]["bytes"]
        state = op.get("state_bytes", 0)
        if ran[entry] == 1 and total[entry] > 1:
            live += state
        found.append(live + extra)
        if ran[entry] == total[entry] and total[entry] > 1:
            live -= state
    return found


def parking_tape(graph: CapturedGraph, schedule: list[int], tier: Tier | None = None) -> Tape:
    return Tape(compile_plan(graph, schedule), tier=tier or SlowTier(FAST))
