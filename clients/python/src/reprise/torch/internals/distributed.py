# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this one is, and what a pipeline schedule of torch.distributed.pipelining
does, seen from inside its step.

    several_ranks()          # do others wait for the collectives of this one?
    rank_here()
    unwrapped(model)         # what computes, where a wrapper only communicates
    wrapper_around(model)    # the DistributedDataParallel whose forward runs around its own
    schedules()              # those that run on this thread, the innermost first
    halves_backwards()       # whether one of them splits backwards (zero bubble)

A schedule with zero bubble runs the backward of a micro-batch in two halves: for the input at once,
for the weights later. Autograd keeps what lies between, and runs each graph in two passes, which a
plan does not know of. All ranks of a pipeline know the whole schedule, so they answer alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from reprise.torch.internals.traces import frames

_SCHEDULES = "torch.distributed.pipelining.schedules"
_WRAPPERS = "torch.nn.parallel.distributed"
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


def ranks_here() -> int:
    """Returns how many ranks there are on this machine, as the launcher says."""
    text = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    return max(1, int(text)) if text.isdigit() else 1


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside DistributedDataParallel, which communicates before and after its
    forward; any other model itself."""
    inner = getattr(model, "module", None)
    wraps = isinstance(model, nn.parallel.DistributedDataParallel)
    return inner if wraps and isinstance(inner, nn.Module) else model


def wrapper_around(model: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """Returns the wrapper of a model whose forward is running on this thread; None if none is."""
    for frame in frames():
        if frame.f_globals.get("__name__") == _WRAPPERS:
            found = frame.f_locals.get("self")
            if isinstance(found, nn.parallel.DistributedDataParallel) and found.module is model:
                return found
    return None


def adds_up(wrapper: nn.parallel.DistributedDataParallel | None) -> bool:
    """Returns whether the gradients of the backward to come stay on this rank: those of the next
    one, with which they are summed, are to be added to them (`no_sync`)."""
    return wrapper is not None and not wrapper.require_backward_grad_sync


def copies_output(wrapper: nn.parallel.DistributedDataParallel | None) -> bool:
    """Returns whether a wrapper hands the program a copy of the output of the model: one that looks
    for unused parameters always does, one with a static graph in its first forward."""
    if wrapper is None or not getattr(wrapper, "_ddp_sink_clone", True):
        return False
    if wrapper.static_graph:
        return not getattr(wrapper, "_static_graph_delay_allreduce_enqueued", False)
    return bool(wrapper.find_unused_parameters)


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
