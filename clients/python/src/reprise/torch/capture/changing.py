# SPDX-License-Identifier: Apache-2.0
"""What the step itself writes while replays may still follow: parameters, buffers, and what its
collectives fill.

    keep_collected(step)          # before the graph is built, after gathered parameters are known
    elsewhere = written_elsewhere(step)             # before ops are fused (fuse.py)
    followed = follow_changes(step, elsewhere)      # storages that the graph lists, with versions

Static memory has no versions in the step graph. A parameter that is moved between two forwards
(sharpness-aware minimization), stepped in a hook of the backward, or stepped by a closure that is
called again (LBFGS), is listed like a storage that the step makes: alive from the first op to the
last, with a new version after every op that writes it. An op that reads version i may then be
replayed until the op that writes version i + 1, and never after it: the planner, the compiler of
plans and the rehearsal all respect versions.

Versions are not enough if the writing op is not one of PyTorch's own, or does not declare the write
(statistics of a batch norm; a parameter that FSDP fills and empties): then the readers of the
storage are never replayed.

A collective never runs again, because other ranks would have to join it. So what it has written
cannot be made again either. Its operator does not declare what it writes, and no copy is made
before it. Therefore no plan discards such a storage, and nothing that used it before the collective
runs again.
"""

from __future__ import annotations

from reprise.torch.capture.captured import (
    BACKWARD,
    FORWARD,
    CapturedStep,
    CapturedStorage,
)
from reprise.torch.internals.ops import OpKind, is_of_pytorch


def written_elsewhere(step: CapturedStep) -> set[CapturedStorage]:
    """Returns the storages that are written by ops that are not PyTorch's own."""
    return {s for op in step.ops if not is_of_pytorch(op.func) for s in op.mutates}


def follow_changes(step: CapturedStep, elsewhere: set[CapturedStorage]) -> set[CapturedStorage]:
    """Returns the storages that the graph must list although they are alive before and after the
    step. Ops that read a storage whose writes cannot be followed become ONCE."""
    last_backward = _last_backward(step)
    changed: dict[CapturedStorage, int] = {}  # the last write that a replay may come after
    for storage in step.storages:
        writes = [at for at in storage.mutated_by if at <= last_backward]
        if storage.prior and storage.death is None and writes:
            changed[storage] = writes[-1]
    if not changed:
        return set()
    hidden = elsewhere | _undeclared(step, changed)
    followed: set[CapturedStorage] = set()
    for number, op in enumerate(step.ops):
        if op.phase != FORWARD or op.kind not in (OpKind.PURE, OpKind.SEEDED):
            continue
        moved = {s for s in op.reads if changed.get(s, -1) > number}
        if not moved.isdisjoint(hidden):
            op.kind = OpKind.ONCE
            filled = moved & elsewhere
            fillers = (o.name for o in step.ops if not filled.isdisjoint(o.mutates))
            step.filled_by = step.filled_by or next(fillers, "")
        else:
            followed |= moved
    return followed


def _undeclared(step: CapturedStep, changed: dict[CapturedStorage, int]) -> set[CapturedStorage]:
    declared: dict[CapturedStorage, set[int]] = {storage: set() for storage in changed}
    for number, op in enumerate(step.ops):
        for storage in op.mutates:
            if storage in declared:
                declared[storage].add(number)
    return {s for s in changed if set(s.mutated_by) != declared[s]}


def keep_collected(step: CapturedStep) -> None:
    """Pins the storages that collectives write before the backward is over, and makes the ops ONCE
    that use one of them before the last such collective. Nothing runs again after the backward."""
    end = _last_backward(step)
    last: dict[CapturedStorage, int] = {
        s: max((at for at, _ in s.collected if at <= end), default=-1) for s in step.storages
    }
    last = {s: at for s, at in last.items() if at >= 0}
    if not last:
        return
    for storage in last:
        storage.pinned = True
    for number, op in enumerate(step.ops):
        if op.kind not in (OpKind.PURE, OpKind.SEEDED):
            continue
        used = (*op.reads, *op.writes, *op.mutates)
        if any(last.get(storage, -1) > number for storage in used):
            op.kind = OpKind.ONCE


def _last_backward(step: CapturedStep) -> int:
    return max((i for i, op in enumerate(step.ops) if op.phase == BACKWARD), default=0)
