# SPDX-License-Identifier: Apache-2.0
"""A step with micro-batches of several sizes, as if each were as large as the largest.

    graph = evened(graph)      # the same graph if they are of one size

Packed sequences come in other lengths in every step and at every place of it. A plan of the step as
captured would keep what a short micro-batch saves, and exceed its budget when a long one comes
there. So each op's storages get the bytes of the largest among the ops that are the same op of
another micro-batch: by module, call of the module, name, and place among ops of that name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from reprise.torch.capture.captured import CapturedOp
from reprise.torch.capture.step_graph import CapturedGraph


def evened(graph: CapturedGraph) -> CapturedGraph:
    """Returns the graph with micro-batches of one size, the largest of them."""
    before = sum(storage.bytes for storage in graph.storages)
    for same in _same(graph.step.ops, len(graph.step.regions)):
        for op in same:
            op.workspace_bytes = max(other.workspace_bytes for other in same)
        for written in zip(*(op.writes for op in same), strict=True):
            most = max(storage.bytes for storage in written)
            for storage in written:
                storage.bytes = most
    if sum(storage.bytes for storage in graph.storages) == before:
        return graph
    peak = max(graph.measured_peak_bytes, graph.base_peak_bytes())
    return replace(graph, measured_peak_bytes=peak)


def _same(ops: list[CapturedOp], forwards: int) -> list[list[CapturedOp]]:
    """Returns, for each op of a micro-batch, that op of all of them."""
    named: defaultdict[tuple[int, str, str], list[CapturedOp]] = defaultdict(list)
    for op in ops[1:]:
        named[op.phase, op.module, op.name].append(op)
    found = []
    for same in named.values():
        each, rest = divmod(len(same), max(1, forwards))
        if forwards > 1 and not rest:
            same.sort(key=lambda op: op.call)  # a backward runs last calls first
            found += [same[number::each] for number in range(each)]
    return [same for same in found if len({len(op.writes) for op in same}) == 1]
