# SPDX-License-Identifier: Apache-2.0
"""What happens when memory runs out.

    in the forward, one process     the graph is dropped, the cache emptied, and the forward tried
                                    once more from the same generator state; the next plan is asked
                                    for `TIGHTER` of the budget so far
    in the forward, several ranks   nothing is tried again: collectives would be out of step
    in the backward                 nothing is tried again: gradients may have been added up

Where nothing is tried again, a note (notes.py) makes the next start ask for less.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

from reprise.torch.verify import Buffers, Generators

__all__ = ["TIGHTER", "Before", "is_oom"]

TIGHTER = 0.9


def is_oom(error: BaseException | None) -> bool:
    """Did an allocator give up?"""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class Before:
    """What a forward may have changed when it fails, and whether it can be tried again."""

    def __init__(self, model: nn.Module, buffers: bool = False) -> None:
        self._generators = Generators()
        self._buffers = Buffers(model) if buffers else None
        # Statistics would be updated twice, and a copy of all of them in every step is dear.
        still = buffers or not any(True for _ in model.buffers())
        self.again = still and not _several_ranks()

    def restore(self) -> None:
        """Ready for a second try."""
        gc.collect()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._generators.restore()
        if self._buffers is not None:
            self._buffers.restore()


def _several_ranks() -> bool:
    distributed: Any = torch.distributed
    return bool(
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
