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

from reprise.base.errors import RepriseError
from reprise.tensorflow.captured import CapturedStep
from reprise.tensorflow.kinds import is_several

__all__ = ["apply", "check_features"]

_NEEDED = ("_update_input", "_add_control_input")


def check_features(op: Any) -> None:
    """Raises RepriseError if this TensorFlow lacks a method that rewriting needs."""
    missing = [name for name in _NEEDED if not hasattr(op, name)]
    if missing:
        raise RepriseError(
            f"this TensorFlow has no Operation.{missing[0]}, with which plans are applied; "
            "use tf.recompute_grad, or TensorFlow 2.16 to 2.21"
        )


class _Rewriter:
    """Rewrites a graph in one walk over a schedule."""

    def __init__(self, step: CapturedStep) -> None:
        self._step = step
        # The original inputs: a redirected op is later copied with these.
        self._inputs = {op.name: inputs for op, inputs in zip(step.ops, step.inputs, strict=True)}
        self._ran: set[int] = set()
        # By name of an original tensor: the copy that holds its value at this point.
        self._now: dict[str, Any] = {}
        # Views of copies, by the name of the copy and their own name.
        self._views: dict[tuple[str, str], Any] = {}
        self.copies = 0
        self.last: Any = None

    def run(self, schedule: Sequence[int]) -> None:
        """Walks the schedule: redirects every first run, and copies every later one."""
        for entry in schedule:
            if entry < 0:
                continue
            op = self._step.ops[entry]
            if entry in self._ran:
                op = self._copy(op)
            else:
                self._ran.add(entry)
                self._redirect(op)
            if self.last is not None and not _is_tied(op, self.last):
                op._add_control_input(self.last)
            self.last = op

    def _copy(self, op: Any) -> Any:
        """Copies an op that runs again; returns the copy."""
        graph = op.graph
        inputs = [self._present(tensor) for tensor in self._inputs[op.name]]
        with graph.control_dependencies(None), graph.device(op.device or None):
            made = graph.create_op(
                op.type,
                inputs,
                [output.dtype for output in op.outputs],
                name=f"{op.name}/again",
                attrs=_attributes(op),
                op_def=op.op_def,
            )
        self.copies += 1
        for before, now in zip(op.outputs, made.outputs, strict=True):
            now.set_shape(before.shape)
            self._now[before.name] = now
            # A session that is fed the original would not give its value to the copy.
            graph.prevent_feeding(before)
        return made

    def _redirect(self, op: Any) -> None:
        """Makes an op read the copies that hold its inputs at this point."""
        for index, tensor in enumerate(self._inputs[op.name]):
            now = self._present(tensor)
            if now is not tensor:
                op._update_input(index, now)

    def _present(self, tensor: Any) -> Any:
        """Returns the tensor that holds the value of `tensor` at this point of the schedule."""
        if tensor.name in self._now:
            return self._now[tensor.name]
        base = self._step.views.get(tensor.name)
        if base is None:
            return tensor
        now = self._present(base)
        if is_several(tensor.op):
            # It would hold all of its inputs until the last of them is made.
            return now
        if now is base:
            return tensor
        key = (now.name, tensor.name)
        if key not in self._views:
            self._view(tensor, base, now)
        return self._views[key]

    def _view(self, tensor: Any, base: Any, now: Any) -> None:
        """Makes the same view of `now` that `tensor` is of `base`."""
        op = tensor.op
        graph = op.graph
        with graph.control_dependencies(None), graph.device(op.device or None):
            made = graph.create_op(
                op.type,
                [now if t is base else t for t in op.inputs],
                [output.dtype for output in op.outputs],
                name=f"{op.name}/again",
                attrs=_attributes(op),
                op_def=op.op_def,
            )
        for before, view in zip(op.outputs, made.outputs, strict=True):
            view.set_shape(before.shape)
            self._views[now.name, before.name] = view


def _is_tied(op: Any, before: Any) -> bool:
    """Returns whether an op has a control edge from another one as the graph is."""
    return before.name in {other.name for other in op.control_inputs}


def _attributes(op: Any) -> dict[str, Any]:
    """Returns the attributes of an op for a copy of it."""
    return {key: value for key, value in op.node_def.attr.items() if key != "_output_shapes"}


def apply(step: CapturedStep, schedule: Sequence[int]) -> tuple[int, Any]:
    """Writes a valid schedule into the step's graph. Returns how many ops were copied, and the op
    that runs last."""
    if step.ops:
        check_features(step.ops[0])
    rewriter = _Rewriter(step)
    rewriter.run(schedule)
    return rewriter.copies, rewriter.last
