# SPDX-License-Identifier: Apache-2.0
"""A joint graph of torch.compile as a step graph.

    message, made = joint_graph(graph)           # times and workspaces measured op by op
    message, made = joint_graph(graph, measured=False)      # its shape alone
    message = with_loss(message, takes_bytes, is_last)

`made`: the nodes that need no gradient, each with the storage it has: those of the forward, and
those that only the backward wants, which are ops of the backward. What the program does between
forward and backward is one op, LOSS: it reads what the forward hands out and makes the gradients
that the backward begins with. Linear in the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reprise.plan import Capabilities, StepGraph, evaluate, with_frees
from reprise.torch.internals.ops import tensors_in
from reprise.torch.joint.costs import JointCosts, hint

LOSS = "reprise.outside"
# What is alive in it, by the bytes of the gradients it hands back. A cross entropy takes twice as
# much, squares and their mean three times.
OUTSIDE = 3
_INPUT = -1  # of the graph: no storage of the step

Made = list[tuple[Any, int]]


class JointGraph(NamedTuple):
    """A joint graph as the planner reads it, and the nodes that a plan decides about."""

    message: dict[str, Any]
    made: Made


@dataclass(slots=True)
class Peaks:
    """The highest of the memory in each part of a step, in bytes."""

    forward: int = 0
    outside: int = 0  # after the last graph of the forward, before the first backward of one
    backward: int = 0

    @property
    def highest(self) -> int:
        """The peak of the step."""
        return max(self.forward, self.outside, self.backward)


@dataclass(slots=True)
class BackwardMemory:
    """The bytes alive around the backward of a graph; 0: not known."""

    began_live: int = 0
    ended_live: int = 0  # with the gradients that it has just returned
    before_peak: int = 0  # of what the program did since the backward before it


def joint_graph(graph: Any, *, measured: bool = True) -> JointGraph:
    """Returns the step graph of a joint graph, and the nodes that need no gradient with the storage
    that each has."""
    if not measured:
        return _Reading(None).whole(graph)
    with closing(JointCosts()) as costs:
        return _Reading(costs).whole(graph)


def message_of(
    name: str,
    static_bytes: int,
    required: list[int],
    storages: list[dict[str, Any]],
    ops: list[dict[str, Any]],
) -> dict[str, Any]:
    """Returns a compiled step as the planner reads it."""
    return {
        "name": name,
        "source": "torch, compiled",
        "static_bytes": static_bytes,
        "flavour": "aot-joint",
        "measured_step_ns": sum(op["time_ns"] for op in ops),
        "required": required,
        "storages": storages,
        "ops": ops,
    }


def storage_of(number: int, size: int, name: str, made_by: int = 0) -> dict[str, Any]:
    """Returns a storage of such a step."""
    return {
        "id": number,
        "bytes": size,
        "name": name,
        "category": 4,  # reprise.v1.Category: an activation
        "saved_for_backward": False,
        "release_op": made_by,
        "pinned": False,
    }


def has_backward(message: dict[str, Any]) -> bool:
    """Returns whether a graph has a backward: Inductor shows its hook the graphs of inference
    too."""
    return any(op["phase"] == "PHASE_BACKWARD" for op in message["ops"])


def alike(message: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether a graph has the same ops on the same storages as another one, and none is
    larger."""
    sizes = zip(message["storages"], other["storages"], strict=False)
    calls, others = (
        [(op["name"], op["reads"], op["writes"]) for op in of["ops"]] for of in (message, other)
    )
    return calls == others and all(a["bytes"] <= b["bytes"] for a, b in sizes)


def with_loss(message: dict[str, Any], takes_bytes: int, is_last: bool) -> dict[str, Any]:
    """Returns the same graph, in which the loss takes `takes_bytes` beside the gradients it hands
    back. `is_last`: it is the last one to hold what it reads."""
    ops = [
        {**op, "workspace_bytes": takes_bytes} if op["name"] == LOSS else op
        for op in message["ops"]
    ]
    read = {i for op in ops if op["name"] == LOSS and is_last for i in op["reads"]}
    return {**message, "ops": ops, "required": [i for i in message["required"] if i not in read]}


class _Reading:
    """Goes through the nodes of one graph, in order."""

    def __init__(self, costs: JointCosts | None) -> None:
        self._costs = costs
        self._storages: list[dict[str, Any]] = []
        self._ops = [_op("reprise.step_begin", True, "ONCE", 0, [], [])]
        self._known: dict[int, int] = {}  # fake storage -> id, or _INPUT
        self._backward: set[Any] = set()  # what depends on the gradients handed in
        self._handed_out: set[Any] = set()  # what the outputs of the forward depend on
        self._made: Made = []
        self._tangents: list[int] = []
        self._loss: dict[str, Any] | None = None
        self._static = 0
        self._output: list[int] = []

    def whole(self, graph: Any) -> JointGraph:
        self._find_phases(graph)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "output":
                self._output = self._read_by(node)
            else:
                self._call(node)
        self._close()
        message = message_of("joint graph", self._static, self._output, self._storages, self._ops)
        return JointGraph(message, self._made)

    def _find_phases(self, graph: Any) -> None:
        for node in graph.nodes:
            tangent = node.op == "placeholder" and "tangents" in str(node.target)
            if tangent or any(arg in self._backward for arg in node.all_input_nodes):
                self._backward.add(node)
        for node in reversed(graph.nodes):
            if node.op == "output":
                wanted = [arg for arg in node.all_input_nodes if arg not in self._backward]
            elif node in self._handed_out:
                wanted = node.all_input_nodes
            else:
                continue
            self._handed_out.update(wanted)

    def _is_forward(self, node: Any) -> bool:
        """Returns whether a node runs in the forward. One that only the backward wants, and that
        comes within it, runs there: the factor that the derivative of a power or a tanh is, for
        one. It needs no gradient, so the partitioner could put it into the forward, and keep what
        it makes."""
        if node in self._backward:
            return False
        return self._loss is None or node in self._handed_out or _random(node)

    def _placeholder(self, node: Any) -> None:
        """Reads an input of the forward, or a gradient that the backward begins with."""
        tangent = node in self._backward
        for value in tensors_in(node.meta.get("val")):
            key = value.untyped_storage()._cdata
            if key in self._known:
                continue
            if tangent:
                self._known[key] = self._storage(value, node.name, 0)
                self._tangents.append(self._known[key])
            else:
                self._known[key] = _INPUT
                self._static += _bytes(value)

    def _call(self, node: Any) -> None:
        if node in self._backward and self._loss is None:
            self._between()
        forward = self._is_forward(node)
        reads, writes = self._read_by(node), []
        for value in tensors_in(node.meta.get("val")):
            key = value.untyped_storage()._cdata
            if key not in self._known:
                self._known[key] = self._storage(value, node.name, len(self._ops))
                writes.append(self._known[key])
        if not forward:
            for i in reads:
                made_by = self._ops[self._storages[i]["release_op"]]
                self._storages[i]["saved_for_backward"] |= made_by["phase"] == "PHASE_FORWARD"
        own = self._ids(node)
        if node not in self._backward and own:
            self._made.append((node, max(own)))
        if node.target is operator.getitem and not writes:
            return
        touched = sum(self._storages[i]["bytes"] for i in (*reads, *writes))
        kind = "VIEW" if not writes else "ONCE" if _random(node) or not forward else "PURE"
        took, workspace = 0, 0
        if writes and self._costs is not None:
            took, workspace = self._costs.of(node, touched)
        self._ops.append(_op(str(node.target), forward, kind, took, reads, writes))
        self._ops[-1]["workspace_bytes"] = workspace

    def _between(self) -> None:
        """Adds the loss, because the first op of the backward comes."""
        self._loss = _op(LOSS, False, "ONCE", 0, [], self._tangents)
        handed_back = sum(self._storages[i]["bytes"] for i in self._tangents)
        self._loss["workspace_bytes"] = OUTSIDE * handed_back
        for i in self._tangents:
            self._storages[i]["release_op"] = len(self._ops)
        self._ops.append(self._loss)

    def _close(self) -> None:
        for number, op in enumerate(self._ops):
            op["id"] = number
        for i in self._output:
            self._storages[i]["pinned"] = True
        if self._loss is not None:
            forward = {i for o in self._ops if o["phase"] == "PHASE_FORWARD" for i in o["writes"]}
            self._loss["reads"] = [i for i in self._output if i in forward]

    def _read_by(self, node: Any) -> list[int]:
        return sorted({i for arg in node.all_input_nodes for i in self._ids(arg)})

    def _ids(self, node: Any) -> list[int]:
        keys = [v.untyped_storage()._cdata for v in tensors_in(node.meta.get("val"))]
        return [self._known[key] for key in keys if self._known.get(key, _INPUT) != _INPUT]

    def _storage(self, value: Tensor, name: str, made_by: int) -> int:
        number = len(self._storages)
        self._storages.append(storage_of(number, _bytes(value), name, made_by))
        return number


def _bytes(value: Tensor) -> int:
    return hint(value.untyped_storage().nbytes())


def _random(node: Any) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _op(
    name: str, forward: bool, kind: str, time_ns: int, reads: list[int], writes: list[int]
) -> dict[str, Any]:
    return {
        "id": 0,
        "name": name,
        "phase": "PHASE_FORWARD" if forward else "PHASE_BACKWARD",
        "kind": f"OP_KIND_{kind}",
        "time_ns": time_ns,
        "workspace_bytes": 0,
        "reads": reads,
        "writes": writes,
        "mutates": [],
        "module": "",
        "call": 0,
        "ordinal": 0,
    }


# Whatever is recomputed was allowed by whoever chose it.
_ANYTHING = Capabilities(seeded_ok=True, collective_ok=True)


def peak_under(message: dict[str, Any], again: Collection[int]) -> int:
    """Returns the bytes at the peak of a step graph when the ops `again` run once more in the
    backward, and no others, as a partitioner does it. `message`: the graph as it is sent to the
    planner.

    The forward runs as it is and keeps what is not recomputed. Right before the first op of the
    backward that needs something absent, everything missing for it runs again in the order of the
    forward, and stays until its last reader. That is what the planner's executor `joint` does."""
    return peaks_under(message, again).highest


def peaks_under(message: dict[str, Any], again: Collection[int]) -> Peaks:
    """Returns the same by part of the step."""
    graph = StepGraph.from_message(message)
    runs = _runs(graph, set(again))
    alive = evaluate(graph, with_frees(graph, runs), _ANYTHING).bytes_at
    # A loss before the first op of the backward, at most; else there is nothing outside.
    after = next((n for n, o in enumerate(runs) if graph.ops[o].phase != "forward"), len(runs))
    outside = [n for n, o in enumerate(runs) if graph.ops[o].name == LOSS]
    end = outside[-1] + 1 if outside else after
    return Peaks(
        max(alive[: outside[0] if outside else after], default=0),
        max((alive[n] for n in outside), default=0),
        max(alive[end:], default=0),
    )


def _runs(graph: StepGraph, again: set[int]) -> list[int]:
    """Returns the ops in the order in which they run."""
    maker = {s: o for o, op in enumerate(graph.ops) for s in op.writes}
    absent = {s for o in again for s in graph.ops[o].writes}
    runs: list[int] = []
    for number, op in enumerate(graph.ops):
        if op.phase == "backward":
            missing: set[int] = set()
            todo = [s for s in op.reads if s in absent]
            while todo:
                made_by = maker[todo.pop()]
                if made_by not in missing:
                    missing.add(made_by)
                    todo += [s for s in graph.ops[made_by].reads if s in absent]
            runs += sorted(missing)
            absent.difference_update(*(graph.ops[o].writes for o in missing))
        runs.append(number)
    return runs
