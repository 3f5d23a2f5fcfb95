# SPDX-License-Identifier: Apache-2.0
"""What collectives write in a captured step.

    keep_collected(step)          # before the graph is built, after gathered parameters are known

A collective never runs again, because other ranks would have to join it. So what it has written
cannot be made again either. Its operator does not declare what it writes, and no copy is made
before it. Therefore no plan discards such a storage, and nothing that used it before the collective
runs again.
"""

from __future__ import annotations

from reprise.torch.capture.captured import BACKWARD, CapturedStep, CapturedStorage
from reprise.torch.internals.ops import OpKind

__all__ = ["keep_collected"]


def keep_collected(step: CapturedStep) -> None:
    """Pins the storages that collectives write before the backward is over, and makes the ops ONCE
    that use one of them before the last such collective. Nothing runs again after the backward."""
    end = max((i for i, op in enumerate(step.ops) if op.phase == BACKWARD), default=0)
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
