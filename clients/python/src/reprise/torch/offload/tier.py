# SPDX-License-Identifier: Apache-2.0
"""Where storages go that leave the device, and the copies to and from there.

    tier = tier_of(device)
    slab = tier.slab(nbytes)               # RepriseError: the system does not give so much
    leaving = tier.out(bytes, place)       # begins once what was computed so far is there
    leaving.wait()                         # what is computed from here on comes after the copy
    coming = tier.back(place, bytes)

Both tiers have one engine for each direction, which takes copies in the order in which they were
asked for. A caller keeps both tensors of a copy until it has waited for it: a tier does not, so
that memory is freed when the program says so, whenever the copy happens to end.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from reprise.torch.offload.slab import Slab


class Copying(Protocol):
    """A copy that was begun."""

    def wait(self) -> None:
        """Makes everything that the program computes from here on come after the copy."""


class Tier(Protocol):
    """Host memory beside one device."""

    name: str  # for people, and for figures that are kept
    least_bytes: int  # what is smaller is not worth a copy

    def slab(self, size: int) -> Slab:
        """Returns a block of at least so many bytes: the newest one, if it is large enough. Raises
        RepriseError."""

    def out(self, source: Tensor, target: Tensor) -> Copying:
        """Begins to copy the bytes of the device to a place of the block."""

    def back(self, source: Tensor, target: Tensor) -> Copying:
        """Begins to copy a place of the block to the device, into memory that is allocated
        already."""


@cache
def tier_of(device: torch.device) -> Tier | None:
    """Returns the tier of a device, one per process; None if there is none for its kind."""
    if device.type == "cuda":
        from reprise.torch.offload.cuda_tier import CudaTier

        return CudaTier(device)
    if device.type == "cpu":
        from reprise.torch.offload.slow_tier import SlowTier

        return SlowTier()
    return None
