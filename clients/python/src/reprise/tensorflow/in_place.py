# SPDX-License-Identifier: Apache-2.0
"""Computes the peak of a schedule as TensorFlow runs it.

An elementwise op writes its output over an input that nobody reads any more. Whether that is so
depends on the schedule, so the step graph cannot express it, and the planner counts both: its peak
is never too small.
"""

from __future__ import annotations

from collections.abc import Sequence

from reprise.plan import Evaluation
from reprise.tensorflow.captured import CapturedStep
from reprise.tensorflow.kinds import forwards

__all__ = ["peak_in_place"]


def peak_in_place(step: CapturedStep, schedule: Sequence[int], walked: Evaluation) -> int:
    """Returns the peak in bytes. `walked` is the evaluation of the schedule."""
    peak, at = 0, -1
    freed: set[int] = set()
    # Backwards, so that it is known what is freed after an op.
    for entry in reversed(schedule):
        if entry < 0:
            freed.add(-entry - 1)
            continue
        alive = walked.bytes_at[at] - _taken_over(step, entry, freed)
        peak = max(peak, alive)
        at -= 1
        freed = set()
    return peak


def _taken_over(step: CapturedStep, entry: int, freed: set[int]) -> int:
    """Returns the bytes of an op's output if it takes over the memory of an input; otherwise 0."""
    op, described = step.ops[entry], step.graph.ops[entry]
    if not forwards(op) or not described.writes or step.made_by[described.writes[0]].op is not op:
        return 0
    size = step.graph.storages[described.writes[0]].bytes
    output = op.outputs[0]
    for tensor in step.inputs[entry]:
        storage = step.storage_of.get(tensor.name)
        if storage not in freed or storage in described.writes or tensor.dtype != output.dtype:
            continue
        if step.graph.storages[storage].bytes == size:
            return size
    return 0
