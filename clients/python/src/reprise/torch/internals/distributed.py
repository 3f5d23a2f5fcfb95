# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this one is, and what a pipeline schedule of torch.distributed.pipelining
does, seen from inside its step.

    several_ranks()          # do others wait for the collectives of this one?
    rank_here()
    unwrapped(model)         # what computes, where a wrapper only communicates
    schedules()              # those that run on this thread, the innermost first
    halves_backwards()       # whether one of them splits backwards (zero bubble)

A schedule with zero bubble runs the backward of a micro-batch in two halves: for the input at once,
for the weights later. Autograd keeps what lies between, and runs each graph in two passes, which a
plan does not know of. All ranks of a pipeline know the whole schedule, so they answer alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from reprise.torch.internals.traces import frames

_SCHEDULES = "torch.distributed.pipelining.schedules"
_HALVES = ("BACKWARD_INPUT", "BACKWARD_WEIGHT")


def ranks_have_met() -> bool:
    """Returns whether the program has joined a process group, if only one of itself."""
    distributed: Any = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def several_ranks() -> bool:
    """Returns whether other ranks wait for the collectives of this process."""
    return ranks_have_met() and torch.distributed.get_world_size() > 1


def rank_here() -> int:
    """Returns the rank of this process; 0 if there is no other."""
    return torch.distributed.get_rank() if ranks_have_met() else 0


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside DistributedDataParallel, which communicates before and after its
    forward; any other model itself."""
    inner = getattr(model, "module", None)
    wraps = isinstance(model, nn.parallel.DistributedDataParallel)
    return inner if wraps and isinstance(inner, nn.Module) else model


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
