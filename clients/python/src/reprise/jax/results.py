# SPDX-License-Identifier: Apache-2.0
"""Computes the peak of a schedule as XLA assigns it: temporaries lie in the memory of results.

Every result has a buffer for the whole program. Until the result is written, XLA puts temporaries
into it, one at a time, that are not larger. Whether one fits depends on the schedule, so the step
graph cannot express it, and the planner counts results and temporaries: its peak is too large
rather than too small. It matters where large results are made last, as by a `scan`, which stacks
the gradients of all iterations at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from reprise.jax.captured import CapturedStep
from reprise.jax.program import bytes_of
from reprise.plan import evaluate


def peak_in_results(step: CapturedStep, schedule: Sequence[int], donated: Iterable[Any]) -> int:
    """Returns the peak in bytes. `donated`: the arguments in whose memory results lie; nothing else
    fits there before."""
    walked = evaluate(step.graph, schedule)
    rooms = _rooms(step, donated)
    storages, ops = step.graph.storages, step.graph.ops
    alive: dict[int, int] = {}
    peak, at = 0, 0
    for entry in schedule:
        if entry < 0:
            alive.pop(-entry - 1, None)
            continue
        for storage in ops[entry].writes:
            rooms.pop(storage, None)
            alive[storage] = storages[storage].bytes
        taken = walked.bytes_at[at]
        at += 1
        if taken > peak:
            peak = max(peak, taken - _inside(rooms.values(), alive.values()))
    return peak


def _rooms(step: CapturedStep, donated: Iterable[Any]) -> dict[int, int]:
    """Returns the bytes of the results that have memory of their own, by storage."""
    program = step.clusters.program
    taken = Counter((tuple(one.shape), str(one.dtype)) for one in donated)
    rooms: dict[int, int] = {}
    for value in program.results:
        aval = program.avals[value]
        kind = (tuple(getattr(aval, "shape", ())), str(getattr(aval, "dtype", "")))
        if taken[kind]:
            taken[kind] -= 1
            continue
        for base in step.clusters.needed([value])[1]:
            if base in step.storage_of:
                rooms[step.storage_of[base]] = bytes_of(aval)
    return rooms


def _inside(rooms: Iterable[int], alive: Iterable[int]) -> int:
    """Returns the bytes of the temporaries that lie in rooms: the largest that fits in each."""
    sizes = iter(sorted(alive, reverse=True))
    by_size = sorted(rooms, reverse=True)
    return sum(next((size for size in sizes if size <= room), 0) for room in by_size)
