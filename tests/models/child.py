# SPDX-License-Identifier: Apache-2.0
"""Trains one case in a process of its own and prints what became of it as one JSON object.

    python -m tests.models.child style/sam --steps 16                  # plain
    python -m tests.models.child style/sam --steps 16 --budget 0.5x    # under Reprise
    python -m tests.models.child style/sam --steps 16 --by-hand        # every block checkpointed

`digest` is of every parameter, buffer, optimizer state, gradient, loss and the state of the random
generator, so that equal digests mean equal bits. `rises`: how far the heap rose in each step, from
heap_counter.c, which `run.py` preloads; without it they are null. `planned`: which steps ran as
planned, as the report counts them. `before`: how much of each rise came before the model's first
forward, in the plain run. `tensor_rise`: how far the tensors alone rose in one more step.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import frameworks, language, styles, torchvision_ops, vision  # noqa: F401
from .cases import CASES, Job

__all__ = ["digest", "main"]


class Heap:
    """The counters of heap_counter.c; `known` is False where it is not preloaded."""

    def __init__(self) -> None:
        own = ctypes.CDLL(None)
        self.known = hasattr(own, "heap_live")
        self._own = own
        if self.known:
            own.heap_live.restype = own.heap_peak.restype = ctypes.c_int64

    def now(self) -> int:
        """Bytes allocated now."""
        return int(self._own.heap_live()) if self.known else 0

    def peak(self) -> int:
        """Most bytes allocated since the last `reset`."""
        return int(self._own.heap_peak()) if self.known else 0

    def reset(self) -> None:
        """Forgets the peak."""
        if self.known:
            self._own.heap_reset_peak()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nested optimizer state, in a stable order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def digest(job: Job, losses: list[str]) -> str:
    """A hash over all that training changes; equal for two processes with equal bits."""
    found = hashlib.sha256("\n".join(losses).encode())
    state = [[*m.state_dict().values()] for m in job.models]
    grads = [[p.grad for p in m.parameters() if p.grad is not None] for m in job.models]
    optimizers = [[o.state_dict()["state"]] for o in job.optimizers]
    for tensor in _tensors([state, grads, optimizers, torch.get_rng_state()]):
        if tensor.is_sparse:
            tensor = tensor.coalesce().to_dense()
        found.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:24]


def _gradient_bytes(job: Job) -> int:
    """Gradients of the step before: the next one frees them before it makes its own."""
    grads = [p.grad for m in job.models for p in m.parameters() if p.grad is not None]
    return sum(g.untyped_storage().nbytes() for g in grads if not g.is_sparse)


class Steps:
    """What each step of a job takes, from its begin to that of the next one."""

    def __init__(self, job: Job, heap: Heap, armed: bool) -> None:
        self._job, self._heap, self._armed = job, heap, armed
        self.rises: list[int] = []
        self.cpu_ns: list[int] = []
        self.planned: list[bool] = []  # ran as planned from its begin to its end
        self.before: list[int] = []  # of each rise, what came before the first forward
        self._floor = self._began = 0
        self._under_way = False
        self._counts = (0, 0, 0)

    def begin(self) -> None:
        """A step begins; the one before is over."""
        self.end()
        self._under_way = True
        self._heap.reset()
        self._floor = self._heap.now() - _gradient_bytes(self._job)
        self._began = time.process_time_ns()
        self.before.append(-1)

    def forward(self, module: nn.Module) -> None:
        """A module is about to run."""
        if module is self._job.armed and self._under_way and self.before[-1] < 0:
            self.before[-1] = self._heap.peak() - self._floor

    def end(self) -> None:
        """The step under way is over, if there is one."""
        if not self._under_way:
            return
        self._under_way = False
        self.cpu_ns.append(time.process_time_ns() - self._began)
        self.rises.append(self._heap.peak() - self._floor)
        before, self._counts = self._counts, self._count()
        planned, without, left = (
            now - then for now, then in zip(self._counts, before, strict=True)
        )
        self.planned.append(planned > 0 and without == left == 0)

    def _count(self) -> tuple[int, int, int]:
        """Planned steps, those without a plan, and those that left theirs."""
        if not self._armed:
            return 0, 0, 0
        import reprise

        report = reprise.report(self._job.armed)
        return report.planned_steps, report.unplanned_steps, report.mismatched_steps


def tensor_rise(job: Job, number: int) -> int:
    """How far the tensors of one more step rose, as the profiler of PyTorch counts them: it does
    not see that those go that were there before, as gradients of the step before."""
    assert job.step is not None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as watched:
        job.step(number)
    found = watched.profiler.kineto_results.events()
    memory = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
    return max(itertools.accumulate((nbytes for _, nbytes in memory), initial=0))


def checkpoint_by_hand(job: Job) -> int:
    """Wraps every child of the model's lists of blocks in torch.utils.checkpoint, as users do.
    Returns how many were wrapped; 0 where the model has no such list."""
    lists = job.by_hand or [
        m
        for m in job.armed.modules()
        if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m) >= 2
    ]
    wrapped: set[int] = set()
    inside: set[int] = set()
    for blocks in lists:
        for block in blocks.children():
            has_own = any(True for _ in block.parameters())
            if id(block) in inside or id(block) in wrapped or not has_own:
                continue
            wrapped.add(id(block))
            inside.update(id(m) for m in block.modules() if m is not block)
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return len(wrapped)


def main() -> None:
    """Reads the arguments, trains, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--budget")
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--verify-every", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torchvision_ops.declare()
    heap = Heap()
    torch.manual_seed(0)
    job = CASES[options.case]()
    wrapped = checkpoint_by_hand(job) if options.by_hand else 0
    result: dict[str, Any] = {"case": options.case, "wrapped": wrapped}
    if options.budget is not None:
        import reprise

        reprise.auto(job.armed, budget=options.budget, verify_every=options.verify_every)
    torch.manual_seed(1)
    steps = Steps(job, heap, armed=options.budget is not None)
    if options.budget is None and "compiled" not in options.case:  # compiled code would see it
        # A function, no method: cases copy the model with its hooks.
        job.armed.register_forward_pre_hook(lambda module, _: steps.forward(module))
    losses = [loss.item().hex() for loss in job.run(options.steps, steps.begin)]
    steps.end()
    result["digest"] = digest(job, losses)
    result["rises"] = steps.rises if heap.known else None
    result["planned"] = steps.planned
    result["before"] = [max(0, rise) for rise in steps.before]
    result["cpu_ns"] = steps.cpu_ns
    if options.budget is None and job.step is not None and heap.known:
        result["tensor_rise"] = tensor_rise(job, options.steps)
    if options.budget is not None:
        report = reprise.report(job.armed)
        result["report"] = asdict(report) | {
            "validated": report.validated,
            "sentence": str(report),
        }
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
