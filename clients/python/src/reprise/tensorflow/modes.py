# SPDX-License-Identifier: Apache-2.0
"""The three modes of the original package, as schedules that keep a set of checkpoints.

    speed        keep the outputs of convolutions and matrix products
    memory       keep about the square root of the articulation points, evenly spaced
    collection   keep the tensors of the graph collection "checkpoints"

Between two checkpoints everything is discarded after its last reader in the forward. When the
backward first needs something from such a segment, everything that it needs from it is recomputed,
in base order.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from reprise.base.errors import RepriseError
from reprise.plan import with_frees
from reprise.tensorflow.captured import CapturedStep

COLLECTION = "checkpoints"
MODES = ("memory", "speed", "collection")
_COSTLY = re.compile(r"Conv|MatMul|Einsum")


def checkpoints_of(step: CapturedStep, mode: str | Sequence[Any]) -> set[int]:
    """Returns the storages that a mode, or a list of tensors, keeps; none for "memory" in a graph
    without articulation points. Raises RepriseError if there are none otherwise."""
    if not isinstance(mode, str):
        return _storages(step, mode, "checkpoints")
    if mode == "collection":
        tensors = step.ops[0].graph.get_collection(COLLECTION) if step.ops else []
        if not tensors:
            raise RepriseError(
                f'checkpoints="collection": the collection {COLLECTION!r} of the graph is empty; '
                f"tf.compat.v1.add_to_collection({COLLECTION!r}, tensor) fills it"
            )
        return _storages(step, tensors, f"collection {COLLECTION!r}")
    if mode == "speed":
        return {
            s
            for op in step.graph.ops[: step.first_backward]
            if _COSTLY.search(op.name)
            for s in op.writes
        }
    if mode != "memory":
        raise RepriseError(
            f"checkpoints: must be one of {', '.join(MODES)} or a list of tensors, got {mode!r}"
        )
    points = articulation_points(step)
    if not points:
        return set()
    stride = math.ceil(len(points) / math.ceil(math.sqrt(len(points))))
    return set(points[stride - 1 :: stride])


def _storages(step: CapturedStep, tensors: Sequence[Any], what: str) -> set[int]:
    """Returns the storages of these tensors. Raises RepriseError if the step has none of them."""
    found = {step.storage_of[t.name] for t in tensors if t.name in step.storage_of}
    if not found:
        raise RepriseError(f"{what}: none of its tensors is one that the gradients depend on")
    return found


def articulation_points(step: CapturedStep) -> list[int]:
    """Returns the storages of the forward that are, at some moment, the only ones alive besides
    static memory; in the order in which they are made."""
    graph, end = step.graph, step.first_backward
    last: dict[int, int] = {}
    for o, op in enumerate(graph.ops[:end]):
        last |= dict.fromkeys([*op.reads, *op.writes], o)
    alive: set[int] = set()
    points: list[int] = []
    for o, op in enumerate(graph.ops[: end - 1]):
        alive |= {*op.writes, *op.mutates}
        alive = {s for s in alive if last[s] > o}
        if len(alive) == 1 and graph.storages[next(iter(alive))].bytes:
            points += alive - set(points[-1:])
    return points


def schedule_of(step: CapturedStep, checkpoints: set[int]) -> list[int]:
    """Returns the schedule that keeps, from the forward to the backward, the checkpoints and what
    cannot run again."""
    graph, end = step.graph, step.first_backward
    writers = {s: o for o, op in enumerate(graph.ops) for s in (*op.writes, *op.mutates)}
    makers: dict[int, list[int]] = {}
    for o, op in enumerate(graph.ops[:end]):
        for s in (*op.writes, *op.mutates):
            makers.setdefault(s, []).append(o)
    kept = {
        s
        for s, ops in makers.items()
        if s in checkpoints
        or graph.storages[s].pinned
        or any(graph.ops[o].kind == "once" for o in ops)
    }
    needed = _needed_again(graph, end, kept, makers)
    # By op, how many checkpoints were made before it; by that number, the ops to run again.
    made = [any(s in checkpoints for s in op.writes) for op in graph.ops[:end]]
    segment = list(accumulate(made, initial=0))
    again: dict[int, set[int]] = defaultdict(set)
    for s in needed:
        again[segment[makers[s][0]]].update(makers[s])
    order = list(range(end))

    def run_again(reads: Iterable[int]) -> None:
        """Runs the segments of what is read, each once, after earlier ones that they need."""
        for s in reads:
            together = sorted(again.pop(segment[makers[s][0]], ()) if s in needed else ())
            for o in together:
                run_again(graph.ops[o].reads)
            order.extend(together)

    for o in range(end, len(graph.ops)):
        run_again(sorted(graph.ops[o].reads, key=lambda s: writers[s]))
        order.append(o)
    return with_frees(graph, order)


def _needed_again(graph: Any, end: int, kept: set[int], makers: dict[int, list[int]]) -> set[int]:
    """Returns the storages that must be recomputed: what the backward reads and was not kept, and
    what recomputing that takes."""
    todo = [s for op in graph.ops[end:] for s in op.reads if s in makers and s not in kept]
    needed: set[int] = set()
    while todo:
        s = todo.pop()
        if s in needed:
            continue
        needed.add(s)
        for o in makers[s]:
            todo += [r for r in graph.ops[o].reads if r not in kept and r != s]
    return needed
