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

from typing import Any

from reprise.torch.capture.step_graph import CapturedGraph

__all__ = ["fitted"]

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
    for key in ("static_bytes", "measured_peak_bytes", "measured_step_ns"):
        made[key] = at([m[key] for m in messages])
    for number, storage in enumerate(made["storages"]):
        storage["bytes"] = at([m["storages"][number]["bytes"] for m in messages])
    for number, op in enumerate(made["ops"]):
        for key in ("time_ns", "workspace_bytes", "again_ns", "state_bytes"):
            if all(key in m["ops"][number] for m in messages):
                op[key] = at([m["ops"][number][key] for m in messages])
        op.pop("agent_ops", None)  # its kernels are those of another input
    made["name"] = f"{made['name']}, {size} elements"
    made.pop("tensors")  # their shapes are those of another input
    return made


def _alike(graphs: list[CapturedGraph]) -> bool:
    """Returns whether these are the same ops on the same storages. When storages end is taken from
    the largest: what a thread beside the program's holds on to, as Gloo's do, may end within one
    step and after another."""
    first = graphs[0]
    births = [(s.birth, s.name) for s in first.storages]
    return all(
        g.structure == first.structure and [(s.birth, s.name) for s in g.storages] == births
        for g in graphs[1:]
    )


def _lagrange(sizes: list[int], size: int) -> list[float]:
    weights = []
    for i, own in enumerate(sizes):
        weight = 1.0
        for j, other in enumerate(sizes):
            if i != j:
                weight *= (size - other) / (own - other)
        weights.append(weight)
    return weights
