# SPDX-License-Identifier: Apache-2.0
"""A planned forward that may have to run again (planned_retry.py).

    forward = PlannedForward(state, call, args, kwargs)    # just before it runs
    forward.outputs = Outputs(out)
    forward.obstacle(job)       # why it cannot run again now
    rehearsed(model, forward, small)

Linear in parameters and buffers, of which the large ones are not copied.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.compiled import fast
from reprise.torch.internals.distributed import several_ranks
from reprise.torch.internals.engine import nodes
from reprise.torch.internals.host import host_bytes
from reprise.torch.job.job import EagerJob
from reprise.torch.recovery.moment import raw_saved
from reprise.torch.rerun.repeatable import hooked, observed
from reprise.torch.rerun.restart import Arrived, Outputs
from reprise.torch.rerun.snapshot import Inputs, Snapshot, WatchedState
from reprise.torch.tape.costs import STEP_BYTES
from reprise.torch.tape.records import Kept, Ref

# Runs whose median is the cost of remembering a forward.
ROUNDS = 7


class PlannedForward:
    """One planned forward, and what it takes to run it again."""

    def __init__(self, state: WatchedState, call: Any, args: Any, kwargs: Any) -> None:
        self.call = call
        self.inputs = Inputs(args, kwargs)
        self.before = Snapshot(state)
        self.state = state
        state.take()
        self.outputs: Outputs | None = None  # once it has returned

    def obstacle(self, job: EagerJob) -> str:
        """Returns why the forward cannot run again now, or "" if it can."""
        rung = job.plans.rung
        arguments = self.inputs.again()
        job.step.stop_check()  # which listens to gradients, too
        if several_ranks() or job.state.several_ranks:
            return "other ranks would not do the same"
        if arguments is None:
            return "its inputs were freed or modified since"
        if any(not p.is_leaf or observed(p) for p in job.model.parameters()):
            return "a parameter has gradient hooks"
        if rung is None or not rung.repeats or hooked(job.model):
            return "a second forward would have side effects"
        if self.state.differs(job.model):
            return "parameters or large buffers were modified after its forward"
        return ""


def rehearsed(model: nn.Module, forward: PlannedForward, small: int) -> int:
    """Returns the nanoseconds that remembering a forward adds to a step, in which the step's own
    data has evicted ours from the caches. `small`: the most bytes of outputs whose gradients are
    kept."""
    cpu, arguments = torch.device("cpu"), forward.inputs.again() or ((), {})
    others = host_bytes(STEP_BYTES, cpu)
    state = WatchedState(model)  # not that of the forward, which is there to be put back
    size = 0 if forward.outputs is None else forward.outputs.bytes
    grad = host_bytes(size if 0 < size <= small else 1, cpu)
    arrived = Arrived(grad)
    took = []
    for _ in range(ROUNDS):
        others.add_(1)
        begin = time.thread_time_ns()
        PlannedForward(state, None, *arguments)
        state.gradients()
        arrived.take(grad)
        took.append(time.thread_time_ns() - begin)
    return int(median(took))


def release_graph(heads: Any) -> None:
    """Releases what autograd has saved for a backward that will not run again, as if it had run.
    Without the native engine, releases only what went through our hooks: all of it, then."""
    module = fast.library()
    if module is not None:
        module.let_go([head for head in heads if isinstance(head, Tensor)])
        return
    for node in nodes(heads):
        for kept in raw_saved(node):
            if isinstance(kept, (Kept, Ref)):
                kept.let_go()
