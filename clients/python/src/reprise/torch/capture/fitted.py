# SPDX-License-Identifier: Apache-2.0
"""The step graph of an input size that has not been seen, from those of two or three that have.

    message = fitted([(512, small), (1024, large)], 2048)

Sizes of storages, workspaces and times are polynomials of the number of input elements: a constant
for parameters and statistics, a line in the batch, a parabola in the length of a sequence that
attends to itself. Through two points goes a line, through three a parabola; the structure must be
the same, storage by storage. What comes out wrong is measured at the first step and planned again
by the server, as any other misprediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprise.torch.capture.captured import CapturedStorage
from reprise.torch.capture.step_graph import CapturedGraph

Point = tuple[int, CapturedGraph]


def fitted(points: list[Point], size: int) -> dict[str, Any] | None:
    """Returns the step graph of an input of `size` elements, as the planner reads it; None if the
    graphs are not of one program. `points`: sizes with their graphs, two at least."""
    points = sorted(points, key=lambda point: point[0])[-3:]
    graphs = [graph for _, graph in points]
    sizes = [at for at, _ in points]
    if len(points) < 2 or len(set(sizes)) < len(sizes) or not _alike(graphs):
        return None
    weights = _lagrange(sizes, size)
    messages = [graph.message() for graph in graphs]

    def at(values: list[int]) -> int:
        if len(set(values)) == 1:
            return values[0]
        return max(0, round(sum(w * v for w, v in zip(weights, values, strict=True))))

    made = messages[-1]
    before = at([g.static_bytes + sum(s.bytes for s in g.storages if s.prior) for g in graphs])
    for same in _matched(graphs):
        made["storages"][same[-1].id]["bytes"] = at([storage.bytes for storage in same])
    found = sum(made["storages"][s.id]["bytes"] for s in graphs[-1].storages if s.prior)
    for key in ("static_bytes", "measured_peak_bytes", "measured_step_ns"):
        made[key] = at([m[key] for m in messages])
    # What one graph lists may be static in another, or not have been there: the larger is safe.
    made["static_bytes"] = max(made["static_bytes"], before - found)
    for number, op in enumerate(made["ops"]):
        for key in ("time_ns", "workspace_bytes", "again_ns", "state_bytes"):
            if all(key in m["ops"][number] for m in messages):
                op[key] = at([m["ops"][number][key] for m in messages])
        op.pop("agent_ops", None)  # its kernels are those of another input
    made["name"] = f"{made['name']}, {size} elements"
    made.pop("tensors")  # their shapes are those of another input
    return made


def _alike(graphs: list[CapturedGraph]) -> bool:
    """Returns whether these are the same ops, which make the same storages. When storages end, and
    which of those that were alive before the step end within it, is taken from the largest: what a
    thread beside the program's holds on to, as Gloo's do, may end within one step and after
    another."""
    first = graphs[0]
    births = [(s.birth, s.name) for s in first.storages if not s.prior]
    return all(
        g.structure == first.structure
        and [(s.birth, s.name) for s in g.storages if not s.prior] == births
        for g in graphs[1:]
    )


def _matched(graphs: list[CapturedGraph]) -> Iterator[tuple[CapturedStorage, ...]]:
    """Yields each storage that all graphs list, once for each graph: those that the step makes, and
    those that were alive before it where every graph lists as many of them."""
    for prior in (False, True):
        listed = [[s for s in graph.storages if s.prior is prior] for graph in graphs]
        if len({len(storages) for storages in listed}) == 1:
            yield from zip(*listed, strict=True)


def _lagrange(sizes: list[int], size: int) -> list[float]:
    weights = []
    for i, own in enumerate(sizes):
        weight = 1.0
        for j, other in enumerate(sizes):
            if i != j:
                weight *= (size - other) / (own - other)
        weights.append(weight)
    return weights
