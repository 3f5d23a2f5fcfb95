# SPDX-License-Identifier: Apache-2.0
"""Executor `tf-graph`: writes a schedule into the graph.

An op that runs again is copied. Ops that come after the copy in the schedule read the copy's output
instead; nothing else changes, and no op loses its name, device or attributes. Every op of the
schedule waits for the one before it by a control edge, because TensorFlow otherwise runs whatever
is ready. TensorFlow itself frees memory after the last reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.core.framework import attr_value_pb2

from reprise.base.errors import RepriseError
from reprise.tensorflow.captured import CapturedStep

_NEEDED = ("_update_input", "_add_control_input")


def check_features(op: Any) -> None:
    """Raises RepriseError if this TensorFlow lacks a method that rewriting needs."""
    missing = [name for name in _NEEDED if not hasattr(op, name)]
    if missing:
        raise RepriseError(
            f"this TensorFlow has no Operation.{missing[0]}, with which plans are applied; "
            "use tf.recompute_grad, or TensorFlow 2.16 to 2.21"
        )


def run_one_by_one(op: Any) -> None:
    """Makes a loop run its iterations one after the other, because its memory depends on how many
    run at once. Other ops stay as they are."""
    if op.type in ("While", "StatelessWhile"):
        op._set_attr("parallel_iterations", attr_value_pb2.AttrValue(i=1))


class Rewriter:
    """Writes a valid schedule into the graph of a step, in one walk. What it changes can be undone
    until a session has run."""

    def __init__(self, step: CapturedStep, schedule: Sequence[int]) -> None:
        if step.ops:
            check_features(step.ops[0])
        self._step = step
        # The original inputs: a redirected op is later copied with these.
        self._inputs = {op.name: inputs for op, inputs in zip(step.ops, step.inputs, strict=True)}
        self._ran: set[int] = set()
        # By name of an original tensor: the copy that holds its value at this point.
        self._now: dict[str, Any] = {}
        # Views of copies, by the name of the copy and their own name.
        self._views: dict[tuple[str, str], Any] = {}
        # How many ops were copied, and the op that runs last.
        self.copies = 0
        self.last: Any = None
        # The names of copies; inputs that were redirected, and what they were; control edges.
        self._again: set[str] = set()
        self._redirected: list[tuple[Any, int, Any]] = []
        self._tied: list[tuple[Any, Any]] = []
        # Every first run is redirected, and every later one copied.
        for entry in schedule:
            if entry < 0:
                continue
            op = self._step.ops[entry]
            run_one_by_one(op)
            if entry in self._ran:
                op = self._copy(op)
            else:
                self._ran.add(entry)
                self._redirect(op)
            # Not twice: the graph may have this edge.
            if self.last is not None and self.last.name not in {c.name for c in op.control_inputs}:
                op._add_control_input(self.last)
                self._tied.append((op, self.last))
            self.last = op

    def is_read_by(self, tensors: Sequence[Any], ops: Sequence[Any]) -> bool:
        """Returns whether tensors are computed from a copy, or from one of these ops."""
        wanted = self._again | {op.name for op in ops}
        todo, seen = [tensor.op for tensor in tensors], set[str]()
        while todo:
            op = todo.pop()
            if op.name in wanted:
                return True
            if op.name not in seen:
                seen.add(op.name)
                todo += [tensor.op for tensor in op.inputs]
        return False

    def undo(self) -> None:
        """Gives all ops the inputs and control inputs that they had. Nothing reads the copies then,
        so they never run."""
        for op, index, tensor in self._redirected:
            op._update_input(index, tensor)
        for op, before in self._tied:
            others = [other for other in op.control_inputs if other.name != before.name]
            op._remove_all_control_inputs()
            op._add_control_inputs(others)

    def _copy(self, op: Any) -> Any:
        made = self._like(op, [self._present(tensor) for tensor in self._inputs[op.name]])
        self.copies += 1
        self._again.add(made.name)
        for before, now in zip(op.outputs, made.outputs, strict=True):
            self._now[before.name] = now
            # A session that is fed the original would not give its value to the copy.
            op.graph.prevent_feeding(before)
        return made

    def _like(self, op: Any, inputs: list[Any]) -> Any:
        with op.graph.control_dependencies(None), op.graph.device(op.device or None):
            made = op.graph.create_op(
                op.type,
                inputs,
                [output.dtype for output in op.outputs],
                name=f"{op.name}/again",
                attrs={k: v for k, v in op.node_def.attr.items() if k != "_output_shapes"},
                op_def=op.op_def,
            )
        for before, now in zip(op.outputs, made.outputs, strict=True):
            now.set_shape(before.shape)
        return made

    def _redirect(self, op: Any) -> None:
        """Makes an op read the copies that hold its inputs at this point."""
        for index, tensor in enumerate(self._inputs[op.name]):
            now = self._present(tensor)
            if now is not tensor:
                op._update_input(index, now)
                self._redirected.append((op, index, tensor))

    def _present(self, tensor: Any) -> Any:
        """Returns the tensor that holds the value of `tensor` at this point of the schedule."""
        if tensor.name in self._now:
            return self._now[tensor.name]
        base = self._step.views.get(tensor.name)
        if base is None:
            return tensor
        now = self._present(base)
        if tensor.op.type == "IdentityN":
            # It would hold all of its inputs until the last of them is made.
            return now
        if now is base:
            return tensor
        key = (now.name, tensor.name)
        if key not in self._views:
            made = self._like(tensor.op, [now if t is base else t for t in tensor.op.inputs])
            for before, view in zip(tensor.op.outputs, made.outputs, strict=True):
                self._views[now.name, before.name] = view
        return self._views[key]
