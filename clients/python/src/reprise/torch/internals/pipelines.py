# SPDX-License-Identifier: Apache-2.0
"""What a pipeline schedule of torch.distributed.pipelining does, seen from inside its step.

    halves_backwards()       # whether the schedule that runs on this thread splits backwards (zero
                             # bubble)

A schedule with zero bubble runs the backward of a micro-batch in two halves: for the input at once,
for the weights later. Autograd keeps what lies between, and runs each graph in two passes, which a
plan does not know of. All ranks of a pipeline know the whole schedule, so they answer alike.
"""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["halves_backwards"]

_SCHEDULES = "torch.distributed.pipelining.schedules"
_HALVES = ("BACKWARD_INPUT", "BACKWARD_WEIGHT")


def halves_backwards() -> bool:
    """Returns whether a schedule is running on this thread that splits backwards, on any rank."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _SCHEDULES:
            order = getattr(frame.f_locals.get("self"), "pipeline_order", None)
            if isinstance(order, dict):
                actions = (action for of_rank in order.values() for action in of_rank)
                kinds = (getattr(action, "computation_type", None) for action in actions)
                return any(getattr(kind, "name", "") in _HALVES for kind in kinds)
        frame = frame.f_back
    return False
