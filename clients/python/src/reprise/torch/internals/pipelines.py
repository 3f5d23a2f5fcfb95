# SPDX-License-Identifier: Apache-2.0
"""What a pipeline schedule of torch.distributed.pipelining does, seen from inside its step.

    schedules()              # those that run on this thread, the innermost first
    halves_backwards()       # whether one of them splits backwards (zero bubble)

A schedule with zero bubble runs the backward of a micro-batch in two halves: for the input at once,
for the weights later. Autograd keeps what lies between, and runs each graph in two passes, which a
plan does not know of. All ranks of a pipeline know the whole schedule, so they answer alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprise.torch.internals.traces import frames

__all__ = ["halves_backwards", "schedules"]

_SCHEDULES = "torch.distributed.pipelining.schedules"
_HALVES = ("BACKWARD_INPUT", "BACKWARD_WEIGHT")


def schedules() -> Iterator[Any]:
    """Yields the schedules whose functions run on this thread, the innermost first."""
    for frame in frames():
        if frame.f_globals.get("__name__") == _SCHEDULES:
            yield frame.f_locals.get("self")


def halves_backwards() -> bool:
    """Returns whether a schedule is running on this thread that splits backwards, on any rank."""
    for schedule in schedules():
        order = getattr(schedule, "pipeline_order", None)
        if isinstance(order, dict):
            actions = (action for of_rank in order.values() for action in of_rank)
            kinds = (getattr(action, "computation_type", None) for action in actions)
            return any(getattr(kind, "name", "") in _HALVES for kind in kinds)
    return False
