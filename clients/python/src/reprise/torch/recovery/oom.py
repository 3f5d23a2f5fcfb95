# SPDX-License-Identifier: Apache-2.0
"""What happens when memory runs out.

    in a plain first forward        it is taken in another way (startup.py)
    in a planned forward            the graph is dropped, the cache emptied, a plan asked for within
                                    0.9 of what the last one takes, and the forward tried once
                                    more under it from the same state (planned_retry.py)
    in a planned backward           the same, from the forward on; gradients that have been added to
                                    stay as they are (planned_retry.py)
    where that would show           the error is the program's; the next step waits for that plan
    several ranks                   nothing is tried again: collectives would be out of step; a note
                                    (notes.py) makes the next start ask for less

Who wants to know is told by `Watch`: on a GPU whenever the allocator gives up, in the backward and
the optimizer too, whether or not the program catches it; elsewhere of what nobody catches. What a
forward raises is seen where it is called (session.py).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import TracebackType

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from reprise.torch.internals.contracts import OOM_OBSERVER
from reprise.torch.internals.distributed import several_ranks
from reprise.torch.internals.guard import is_oom, quietly
from reprise.torch.internals.traces import let_go, without_ours
from reprise.torch.rerun.snapshot import Buffers, Snapshot

# Is called before what the functions of the program held is let go; what it returns, after that.
Ended = Callable[[], Callable[[], None] | None]
# Is called with the error or, before there is one, with the bytes that were asked for.
Told = Callable[[BaseException | None, int], None]

_observed: list[Told] = []  # by CUDA's allocator, which has no way to take an observer out


class Watch:
    """Tells whenever memory runs out, and calls `ended` when that has ended the program, until
    `remove` is called."""

    def __init__(self, device: torch.device, told: Told, ended: Ended) -> None:
        self._told = told
        self._ended = ended
        self._before = sys.excepthook
        self._removed = False
        sys.excepthook = self._uncaught
        if device.type == "cuda":
            self._observe()

    def _observe(self) -> None:
        """Also listens to CUDA's own allocator, which tells unless it is cudaMallocAsync."""
        if not _observed:
            attach = OOM_OBSERVER.get()
            if attach is None:
                return
            try:
                attach(_observer)
            except RuntimeError:
                return
        _observed[:] = [self._told]

    def remove(self) -> None:
        """Stops observing."""
        self._removed = True
        _observed[:] = [_ignore] if _observed else []
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._before

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        ran_out = not self._removed and is_oom(error)
        if ran_out:
            self._told(error, 0)
        self._before(kind, error, without_ours(error, trace))
        if ran_out:
            then = self._ended()
            # What its functions held is let go before anything is made of it.
            let_go(trace)
            if then is not None:
                quietly(then)


def _observer(device: int, asked: int, total: int, free: int) -> None:
    for told in _observed:
        told(None, asked)


def _ignore(error: BaseException | None, asked: int) -> None:
    """Ignores an error that comes after the last session has ended."""


class Before(Snapshot):
    """What a forward may have changed when it fails, and whether it can be tried again."""

    def __init__(self, model: nn.Module, buffers: bool = False) -> None:
        # A capture may be under way, to which our copies would be ops of the step.
        with _disable_current_modes():
            super().__init__(Buffers(model) if buffers else None)
        # Statistics would be updated twice, and a copy of all of them in every step is dear.
        still = buffers or not any(True for _ in model.buffers())
        self.again = still and not several_ranks()


def make_room() -> None:
    """Returns unused memory to the device."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
