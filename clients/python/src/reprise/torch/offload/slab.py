# SPDX-License-Identifier: Apache-2.0
"""Host memory for storages that leave the device: one block, with planned places.

    places, total = laid_out([Stay(storage, nbytes, first, last), ...])   # when a plan is compiled
    slab = Slab(memory)                         # at least `total` bytes
    slab.claim(place, nbytes, owner)            # False: an owner that is alive still needs them

A schedule says from when to when a copy is needed, so places are known before the first step, and
nothing is allocated in one. A place may be needed longer than planned, by a graph that the program
keeps. Then its owner does not let it go, and who would have come next stays on the device.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from torch import Tensor

_ALIGNED = 512


class Stay(NamedTuple):
    """A storage, and the first and the last op during which the host has a copy of it."""

    storage: int
    bytes: int
    first: int
    last: int


def laid_out(stays: Iterable[Stay]) -> tuple[dict[int, int], int]:
    """Returns where in the block each storage begins, so that those that are there at once do not
    overlap, and the bytes of the block: first fit, in the order in which they come."""
    places: dict[int, int] = {}
    total = 0
    here: list[tuple[int, int, int]] = []  # begin, end, last op
    for stay in sorted(stays, key=lambda stay: stay.first):
        here = [taken for taken in here if taken[2] >= stay.first]
        size, at = -(-stay.bytes // _ALIGNED) * _ALIGNED, 0
        for begin, end, _ in here:
            if at + size <= begin:
                break
            at = max(at, end)
        insort(here, (at, at + size, stay.last))
        places[stay.storage] = at
        total = max(total, at + size)
    return places, total


class Owner(Protocol):
    """Whose bytes are in a place."""

    @property
    def needs_host(self) -> bool:
        """Returns whether they may still be fetched."""


class Slab:
    """A block of host memory, and who has which part of it."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self._claims: list[tuple[int, int]] = []  # begin, end; ascending, without overlap
        self._owners: dict[int, weakref.ref[Owner]] = {}  # by begin

    def claim(self, at: int, size: int, owner: Owner) -> bool:
        """Gives a place to an owner, and takes it from owners that are gone or done. Returns False,
        and changes nothing, if one of them is neither."""
        first = bisect_left(self._claims, (at,))
        if first and self._claims[first - 1][1] > at:
            first -= 1
        end = first
        while end < len(self._claims) and self._claims[end][0] < at + size:
            known = self._owners[self._claims[end][0]]()
            if known is not None and known is not owner and known.needs_host:
                return False
            end += 1
        for begin, _ in self._claims[first:end]:
            del self._owners[begin]
        self._claims[first:end] = [(at, at + size)]
        self._owners[at] = weakref.ref(owner)
        return True
