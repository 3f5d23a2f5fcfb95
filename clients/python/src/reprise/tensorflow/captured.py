# SPDX-License-Identifier: Apache-2.0
"""A training step inside a TensorFlow graph, as the planner reads it.

Every op that the gradients and the losses are computed from is an op of the step graph, in order of
creation, which is a valid order of execution: forward, then backward. What the step only reads
(variables, feeds, constants) is static memory. An output that shares its input's memory has no
storage of its own; an op that overwrites its input mutates that storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import Any

import tensorflow as tf

from reprise.base.errors import RepriseError
from reprise.plan.step_graph import StepGraph
from reprise.tensorflow.kinds import (
    FORWARDING,
    VIEWS,
    in_a_frame,
    is_source,
    kind_of,
    may_share,
    may_write_over,
    reads_sizes_only,
)
from reprise.tensorflow.trace import OpRecord

# For dimensions that are not known: so that tensors with them are not taken for empty.
ASSUMED = 32
# Ops that may return inputs as they are.
WHOLE = ("IdentityN", "Transpose")
# TensorFlow computes larger constants in every step.
LARGEST_CONSTANT = 10 << 20


@dataclass(slots=True)
class CapturedStep:
    """The step graph, and the TensorFlow objects behind its numbers."""

    graph: StepGraph
    # By op id.
    ops: list[Any]
    # The storage of a tensor, by its name: its own, or the one that it is a view of.
    storage_of: dict[str, int] = field(default_factory=dict)
    # By name of a tensor that has no memory of its own: the tensor whose memory it shares.
    views: dict[str, Any] = field(default_factory=dict)
    # By storage of a handle, as of a list of tensors: the storages that live as long as it does.
    behind: dict[int, list[int]] = field(default_factory=dict)
    # By op id: its inputs before anything was rewritten.
    inputs: list[list[Any]] = field(default_factory=list)
    # The first op of the backward.
    first_backward: int = 0
    sources: list[Any] = field(default_factory=list)

    def inside(self, graph: Any) -> CapturedStep:
        """Returns the same step in a copy of its graph, where ops have the same names."""
        ops = [graph.get_operation_by_name(op.name) for op in self.ops]
        views = {name: graph.get_tensor_by_name(t.name) for name, t in self.views.items()}
        return replace(self, ops=ops, inputs=[list(op.inputs) for op in ops], views=views)


@dataclass(frozen=True, slots=True)
class OrderedOps:
    """The ops of a step in base order."""

    ops: list[Any]
    sources: list[Any]
    # The names of those of the forward.
    forward: set[str]
    # The tensors that the step is for.
    targets: Sequence[Any]


def step_ops(targets: Iterable[Any], effects: Iterable[Any] = ()) -> tuple[list[Any], list[Any]]:
    """Returns all ops that the targets are computed from and the effects need, and the sources that
    they read. An op comes after those that it needs, otherwise in order of creation: the gradient
    of a loop adds inputs to the loop later. Raises RepriseError for control flow of TensorFlow
    1."""
    found: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    todo = [*effects, *(tensor.op for tensor in targets)]
    while todo:
        op = todo.pop()
        if op.name in found or op.name in sources:
            continue
        if is_source(op):
            sources[op.name] = op
            continue
        if in_a_frame(op):
            raise RepriseError(
                f"{op.name}: is control flow of TensorFlow 1, into whose frames no op can be "
                "copied; call tf.compat.v1.enable_control_flow_v2() before the graph is built"
            )
        found[op.name] = op
        todo += [tensor.op for tensor in op.inputs]
        todo += op.control_inputs
    ordered = _in_order(found)
    constant = _constants(ordered)
    rest = [op for op in ordered if op.name not in constant]
    read = {t.op.name for op in rest for t in op.inputs}
    folded = [op for op in ordered if op.name in constant and op.name in read]
    return rest, [*sources.values(), *folded]


def _constants(ordered: list[Any]) -> set[str]:
    """Returns the names of the ops that read only constants. TensorFlow computes them once, before
    the first step, and keeps the results."""
    constant: set[str] = set()
    for op in ordered:
        if op.control_inputs or not op.inputs or kind_of(op) == "once":
            continue
        if any(_size(tensor) > LARGEST_CONSTANT for tensor in op.outputs):
            continue
        if all(t.op.name in constant or t.op.type == "Const" for t in op.inputs):
            constant.add(op.name)
    return constant


def constant_bytes(sources: Iterable[Any]) -> int:
    """Returns the bytes of the computed constants that the step reads."""
    return sum(_size(t) for op in sources if not is_source(op) for t in op.outputs)


def _size(tensor: Any) -> int:
    """Returns the bytes of a tensor; 0 if its size is not known."""
    return (tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def _in_order(found: dict[str, Any]) -> list[Any]:
    """Sorts ops so that each comes after those that it needs, otherwise by creation."""
    needed = {
        op.name: ({t.op.name for t in op.inputs} | {before.name for before in op.control_inputs})
        & found.keys()
        for op in found.values()
    }
    waiting = TopologicalSorter(needed)
    waiting.prepare()
    ready: list[tuple[int, str]] = []
    order = []
    while waiting.is_active():
        for name in waiting.get_ready():
            heappush(ready, (found[name]._id, name))
        _, name = heappop(ready)
        order.append(found[name])
        waiting.done(name)
    return order


def _base_order(ops: list[Any]) -> list[Any]:
    """Moves ops that only read shapes right behind what they read, because they would hold it
    otherwise."""
    position = {op.name: float(i) for i, op in enumerate(ops)}
    for op in ops:
        if reads_sizes_only(op):
            position[op.name] = max((position.get(t.op.name, -1.0) for t in op.inputs), default=-1)
            position[op.name] += 0.5
    return sorted(ops, key=lambda op: position[op.name])


def ordered_ops(
    ys: Sequence[Any], gradients: Sequence[Any], effects: Sequence[Any] = ()
) -> OrderedOps:
    """Returns the ops that make `gradients` of `ys`. The ops of `ys` are its forward. For a whole
    function, `ys` are its outputs, there are no `gradients`, and `effects` are its ops with side
    effects: what a gradient tape made is then the backward."""
    targets = [*ys, *gradients]
    ops, sources = step_ops(targets, effects)
    if gradients:
        forward = {op.name for op in step_ops(ys)[0]}
        ops = sorted(ops, key=lambda op: op.name not in forward)
    else:
        # In order of creation: an op that reads a variable after its update stays behind it.
        tapes = (i for i, op in enumerate(ops) if "gradient_tape/" in op.name)
        forward = {op.name for op in ops[: next(tapes, len(ops))]}
    return OrderedOps(_base_order(ops), sources, forward, targets)


def capture(
    ordered: OrderedOps, records: Mapping[str, OpRecord], static_bytes: int, name: str
) -> CapturedStep:
    """Returns the step of these ops, with the sizes and times that were recorded of them."""
    graph = StepGraph(name, static_bytes=static_bytes, flavour="tf-graph")
    step = CapturedStep(graph, [], sources=ordered.sources)
    inside = {op.name for op in ordered.ops}
    kept = {tensor.name for tensor in ordered.targets}
    step.first_backward = len(ordered.ops)
    for op in ordered.ops:
        shared = _shared(op, records.get(op.name), kept)
        if shared:
            for tensor, base in zip(op.outputs, shared, strict=True):
                if base.name in step.storage_of:  # otherwise it is a source, or a view of one
                    step.storage_of[tensor.name] = step.storage_of[base.name]
                    step.views[tensor.name] = base
            continue
        is_backward = op.name not in ordered.forward and not reads_sizes_only(op)
        _add(step, op, is_backward, records.get(op.name), kept, inside)
    required = {step.storage_of[name] for name in kept if name in step.storage_of}
    graph.require(*sorted(required))
    for storage in required:
        # The program fetches the first copy, so it must stay.
        graph.storages[storage].pinned = True
    return step


def _shared(op: Any, record: OpRecord | None, kept: set[str]) -> list[Any]:
    """Returns, by output of an op, the input whose memory it shares; nothing if it has its own. One
    of several tensors that is fetched makes the op hold all of them."""
    if op.type in VIEWS:
        return [op.inputs[0]]
    bases = may_share(op)
    if not bases or record is None or record.allocated_bytes >= max(1, sum(map(_size, op.outputs))):
        return []
    if op.type == "IdentityN" and any(tensor.name in kept for tensor in op.outputs):
        return []
    if op.type in WHOLE:
        return bases
    # A part that is written over has the size of the whole: so it was recorded.
    return [] if any(map(may_write_over, op.outputs)) else bases


def _add(
    step: CapturedStep,
    op: Any,
    is_backward: bool,
    record: OpRecord | None,
    kept: set[str],
    inside: set[str],
) -> None:
    read = [step.storage_of[t.name] for t in op.inputs if t.name in step.storage_of]
    reads = dict.fromkeys(s for one in read for s in (one, *step.behind.get(one, ())))
    over = _overwritten(step, op, kept, inside)
    writes = []
    for slot, tensor in enumerate(op.outputs):
        if over is not None and slot == 0:
            step.storage_of[tensor.name] = over
            continue
        size = _bytes(tensor, slot, record)
        if record and not record.output_bytes and not (tensor.consumers() or tensor.name in kept):
            size = 0  # what a loop hands on unchanged
        made = step.graph.storage(
            size, tensor.name, category="activation" if not is_backward else "gradient"
        )
        step.storage_of[tensor.name] = made
        writes.append(made)
    handles = [step.storage_of[t.name] for t in op.outputs if t.dtype == tf.variant]
    if handles:
        # What lives as long as they do: what the op has left besides its outputs, and what a list
        # was given. The latter is never made again, because the list has the first.
        left = (
            record.left_bytes - sum(step.graph.storages[s].bytes for s in writes) if record else 0
        )
        held = list(reads) if op.type.startswith("TensorList") and left <= 0 else []
        for storage in held:
            step.graph.storages[storage].pinned = True
        if left > 0:
            held = [step.graph.storage(left, f"{op.name}, elements", category="activation")]
            writes += held
        step.behind |= dict.fromkeys(handles, held)
    if is_backward:
        step.first_backward = min(step.first_backward, len(step.ops))
    step.graph.op(
        op.type,
        list(reads),
        writes,
        mutates=[] if over is None else [over],
        time_ns=record.time_ns if record else 1,
        workspace_bytes=record.workspace_bytes if record else 0,
        phase="backward" if is_backward else "forward",
        kind=kind_of(op),
        module=op.name,
    )
    step.ops.append(op)
    step.inputs.append(list(op.inputs))


def _overwritten(step: CapturedStep, op: Any, kept: set[str], inside: set[str]) -> int | None:
    """Returns the storage that an op overwrites with its output: that of an input of the same size
    that no other op reads, not even through a view. None if there is none."""
    if op.type not in FORWARDING:
        return None
    output = op.outputs[0]
    for tensor in op.inputs:
        if tensor.name not in step.storage_of or tensor.dtype != output.dtype:
            continue
        count = tensor.shape.num_elements()
        if count is None or count != output.shape.num_elements():
            continue
        if _is_only_reader(step, op, tensor, kept, inside):
            return step.storage_of[tensor.name]
    return None


def _is_only_reader(
    step: CapturedStep, op: Any, tensor: Any, kept: set[str], inside: set[str]
) -> bool:
    """Returns whether an op is the only one that needs the memory of a tensor, and nobody fetches
    it."""
    while True:
        if tensor.name in kept:
            return False
        readers = [reader for reader in tensor.consumers() if reader.name in inside]
        if [reader.name for reader in readers] != [op.name]:
            return False
        if sum(other is tensor for other in op.inputs) != 1:
            return False
        if tensor.name not in step.views:
            return not is_source(tensor.op)
        if tensor.op.type not in VIEWS and tensor.op.type not in WHOLE:
            return False
        op, tensor = tensor.op, step.views[tensor.name]


def _bytes(tensor: Any, slot: int, record: OpRecord | None) -> int:
    """Returns the bytes of an output: as measured, otherwise from its shape, with a size for each
    dimension that is not known."""
    if record is not None and slot < len(record.output_bytes):
        return record.output_bytes[slot]
    sizes = [] if tensor.shape.rank is None else tensor.shape.as_list()
    return math.prod(ASSUMED if size is None else size for size in sizes) * int(tensor.dtype.size)
