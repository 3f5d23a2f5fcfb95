# SPDX-License-Identifier: Apache-2.0
"""Computes the peak of a schedule as TensorFlow runs it.

An elementwise op writes its output over an input that nobody reads any more, and so does an op for
cross entropy: its gradient over the logits. Whether that is so
depends on the schedule, so the step graph cannot express it, and the planner counts both: its peak
is never too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reprise.plan import Evaluation
from reprise.tensorflow.captured import CapturedStep
from reprise.tensorflow.kinds import forwards, forwards_second, is_view

__all__ = ["peak_in_place"]


def peak_in_place(step: CapturedStep, schedule: Sequence[int], walked: Evaluation) -> int:
    """Returns the peak in bytes. `walked` is the evaluation of the schedule. The graph must not be
    rewritten yet."""
    peak, at = 0, -1
    freed: set[int] = set()
    inside = {op.name for op in step.ops}
    # Backwards, so that it is known what is freed after an op.
    for entry in reversed(schedule):
        if entry < 0:
            freed.add(-entry - 1)
            continue
        alive = walked.bytes_at[at] - _taken_over(step, entry, freed, inside)
        peak = max(peak, alive)
        at -= 1
        freed = set()
    return peak


def _taken_over(step: CapturedStep, entry: int, freed: set[int], inside: set[str]) -> int:
    """Returns the bytes of an op's output if it takes over the memory of an input; otherwise 0."""
    op, described = step.ops[entry], step.graph.ops[entry]
    second = forwards_second(op)
    if not second and not forwards(op):
        return 0
    output, inputs = op.outputs[int(second)], step.inputs[entry]
    made = step.storage_of[output.name]
    if made not in described.writes:
        return 0
    size = step.graph.storages[made].bytes
    for tensor in inputs[:1] if second else inputs:
        storage = step.storage_of.get(tensor.name)
        if storage not in freed or storage in described.writes or tensor.dtype != output.dtype:
            continue
        # Logits are often read by metrics, too, which may or may not run with the step.
        if second and _is_read_outside(tensor, inside):
            continue
        if step.graph.storages[storage].bytes == size:
            return size
    return 0


def _is_read_outside(tensor: Any, inside: set[str]) -> bool:
    """Returns whether an op outside of the step reads a tensor, or what it is a view of."""
    while True:
        readers = [op for op in tensor.consumers() if op.name not in inside and not is_view(op)]
        if readers:
            return True
        if not is_view(tensor.op):
            return False
        tensor = tensor.op.inputs[0]
