# SPDX-License-Identifier: Apache-2.0
"""The schedule of one capture, for another capture of the same ops.

    schedule = carried(plan.schedule, numbers)   # its copies, with other numbers of storages
    schedule = own_frees(graph, schedule)        # as this capture frees

Ops have the same numbers in both. Storages have not: something else was alive before the step, or
is let go in it. So a schedule travels as its runs and its copies (compile_copies.py), and each
capture adds the frees of its own.

Ranks know what plans may send by `movable`: the op after which nothing writes a storage any more,
and as which of its outputs that returns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from reprise.plan import FreePolicy, StepGraph
from reprise.plan.evaluate import with_frees
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.tape.compile_copies import FETCH, FREE, coded, decoded, makers, staying


class Name(NamedTuple):
    """What a storage is called in all captures of the same ops."""

    op: int  # that makes it, or writes it last
    output: int


def movable(graph: CapturedGraph, least_bytes: int) -> frozenset[Name]:
    """Returns what plans of a step may send to host memory."""
    stay, ops = staying(graph, least_bytes), graph.step.ops
    return frozenset(
        Name(op, next(n for n, made in enumerate(ops[op].outputs) if made and made.id == storage))
        for storage, op in makers(graph.step).items()
        if storage not in stay
    )


def storages_of(graph: CapturedGraph, names: Iterable[Name]) -> list[int]:
    """Returns the numbers that storages have in a capture; what is none there gets one that no
    storage has."""
    outputs = [graph.step.ops[name.op].outputs[name.output] for name in names]
    none = len(graph.storages)
    return [none if made is None or made.id < 0 else made.id for made in outputs]


def carried(schedule: Sequence[int], numbers: Mapping[int, int]) -> tuple[int, ...]:
    """Returns the runs and copies of a schedule, with other numbers of storages."""
    found = []
    for entry in _without_frees(schedule):
        kind, storage = decoded(entry) if entry < 0 else (FREE, 0)
        found.append(entry if entry >= 0 else coded(kind, numbers[storage]))
    return tuple(found)


def own_frees(graph: CapturedGraph, schedule: Sequence[int]) -> list[int]:
    """Returns the runs and copies of a schedule with the frees of a capture. A schedule with
    unknown ops is returned as it is. Linear in the schedule and the graph."""
    if any(entry >= len(graph.step.ops) for entry in schedule):
        return list(schedule)
    copies: defaultdict[int, list[int]] = defaultdict(list)  # by how many runs come before
    runs: list[int] = []
    for entry in _without_frees(schedule):
        if entry >= 0:
            runs.append(entry)
        else:
            copies[len(runs)].append(entry)
    found: list[int] = []
    begun = 0
    for entry in with_frees(StepGraph.from_message(graph.message()), runs, FreePolicy.PROGRAM):
        if entry >= 0:
            found += copies[begun]
            begun += 1
        found.append(entry)
    return found + copies[begun]


def _without_frees(schedule: Sequence[int]) -> list[int]:
    """Returns a schedule without frees, but for those of what is fetched once more."""
    found: list[int] = []
    later: dict[int, int] = {}
    for entry in reversed(schedule):
        if entry < 0:
            kind, storage = decoded(entry)
            comes_back, later[storage] = later.get(storage) == FETCH, kind
            if kind == FREE and not comes_back:
                continue
        found.append(entry)
    return found[::-1]
