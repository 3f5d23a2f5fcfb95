# SPDX-License-Identifier: Apache-2.0
"""Parameters that are in memory only at times: FSDP gathers them before a block runs and empties
them after it.

    with Resizes(emptied): ...           # is told of every storage that is emptied
    list_gathered(step)                  # before the graph is built: their bytes, and the windows

Such a storage object stays for the whole training. It has memory from the op that fills it
(`fsdp.split_with_sizes_copy` in FSDP2, an all-gather in FSDP1) until `UntypedStorage.resize_(0)`,
once around the forward of a block and once around its backward, and always the same values within a
step. One that is full when the step begins (the step begins inside the forward of a larger model)
has memory from then on. So an op that reads it may be replayed, but only where the storage is
filled: in its *windows*. A plan never gathers anything itself, because ranks would wait for each
other.

Other writes of such a storage are not understood: ops that read it then never run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from reprise.torch.capture.captured import CapturedOp, CapturedStep, CapturedStorage
from reprise.torch.internals.guard import quietly
from reprise.torch.internals.ops import OpKind, gathers

_COMMUNICATION = 7  # reprise.v1.Category

Window = tuple[int, int]  # first and last op before which a replay finds the storage filled


@dataclass(frozen=True, slots=True)
class _Time:
    """A time in which a storage has memory."""

    fill: int  # the op that fills it; 0: it was full when the step began
    last: int  # the last op before it is emptied
    size: int  # its bytes


class Resizes:
    """Tells `resized` of every storage that Python code resizes, after it has been resized."""

    def __init__(self, resized: Callable[[torch.UntypedStorage], None]) -> None:
        self._resized = resized
        self._own: Any = None  # what the program had put there, if anything

    def __enter__(self) -> None:
        kind: Any = torch.UntypedStorage
        self._own = vars(kind).get("resize_")
        plain, resized = kind.resize_, self._resized

        def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            out = plain(storage, *args, **kwargs)
            quietly(resized, storage)
            return out

        kind.resize_ = resize_

    def __exit__(self, *_: object) -> None:
        kind: Any = torch.UntypedStorage
        if self._own is None:
            del kind.resize_
        else:
            kind.resize_ = self._own


def list_gathered(step: CapturedStep) -> None:
    """Gives ops that read gathered parameters the windows in which they may be replayed, or makes
    them ONCE if there are none. Lists the memory of each window as a storage of its own, which the
    op that fills it makes and nothing may discard."""
    for storage in step.storages:
        into = storage.collected  # all-gathers, which fill it if the step empties it, too
        if storage.emptied and into and all(gathers(step.ops[at].func) for at, _ in into):
            storage.filled, storage.collected = sorted({*storage.filled, *into}), []
    times = {s: _times(s, len(step.ops)) for s in step.storages if s.filled or s.emptied}
    if not times:
        return
    for op in step.ops:
        if op.in_region and op.kind in (OpKind.PURE, OpKind.SEEDED):
            _limit(op, [[(t.fill + 1, t.last) for t in times[s]] for s in op.reads if s in times])
    for storage, found in times.items():
        for time in found:
            step.storages.append(_memory(storage, step.ops[time.fill], time))


def _limit(op: CapturedOp, windows: list[list[Window]]) -> None:
    """Sets the windows of an op to those that all its gathered parameters have in common."""
    if not windows:
        return
    common = windows[0]
    for others in windows[1:]:
        both = [(max(a, c), min(b, d)) for a, b in common for c, d in others]
        common = sorted((a, b) for a, b in both if a <= b)
    op.replay_windows = common
    if not common:
        op.kind = OpKind.ONCE


def _times(storage: CapturedStorage, ops: int) -> list[_Time]:
    """Returns the times in which a storage is filled; none if anything else writes it."""
    if storage.mutated_by:
        return []
    found: list[_Time] = []
    full = [(0, storage.began)] if storage.began else []
    for fill, size in (*full, *storage.filled):
        last = min((end for end in storage.emptied if end >= fill), default=ops - 1)
        if not found or found[-1].last < fill:  # else it is filled again while it is full
            found.append(_Time(fill, last, size))
    return found


def _memory(storage: CapturedStorage, maker: CapturedOp, time: _Time) -> CapturedStorage:
    """Returns a storage for the memory of one time, written by the op that fills it, if any."""
    name = storage.name or "gathered parameter"
    made = CapturedStorage(time.size, time.fill, prior=time.fill == 0, name=name)
    made.category, made.pinned = _COMMUNICATION, True
    made.death = made.release = time.last
    if not made.prior:  # else the graph lists it as made by op 0
        maker.writes.append(made)
    return made
