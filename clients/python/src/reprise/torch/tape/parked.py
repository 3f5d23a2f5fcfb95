# SPDX-License-Identifier: Apache-2.0
"""The storages of one step that leave the device: where each of them is.

    parked = Parked(places, tier, slab)
    parked.send(7, tensor)               # right after the call that made it: the copy begins
    parked.sent(7)                       # after the copy, the device's memory is let go
    parked.fetch(7)                      # memory is allocated, and the copy back begins
    tensor = fetched(parked.key, 7)      # after that copy
    parked.drain()                       # nothing is under way, and no memory of the device is held

        send             sent             fetch            fetched
    ────────┬─ out ────────┬────────────────┬─ back ─────────┬────────
            │ on both      │  on the host   │  coming        │ the engine's

What is alive follows the order of these calls; how long copies take only decides how long `sent`
and `fetched` wait. `fetched` is a call like any other that a cell is made by (records.py): out of
the order of the plan it waits for the copy out, and fetches at once.

A storage for which the host has no room stays where it is, and the step is larger than planned.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from reprise.base.errors import RepriseError
from reprise.torch.internals.guard import quiet, quietly
from reprise.torch.offload.slab import Slab
from reprise.torch.offload.tier import Copying, Tier
from reprise.torch.tape.calls import alone
from reprise.torch.tape.optimizer_state import StateOnHost, bytes_of
from reprise.torch.tape.program import Place
from reprise.torch.tape.records import Node


@dataclass(eq=False)
class _Copy:
    """One storage, and its copy on the host."""

    here: Tensor | None  # its bytes on the device, until it has left
    dtype: torch.dtype
    device: torch.device
    left: int  # how often it will still be fetched
    forward: int
    host: Tensor | None = None  # its bytes on the host; None: there was no room
    out: Copying | None = None  # on its way to the host
    coming: Tensor | None = None  # on its way back
    back: Copying | None = None

    @property
    def needs_host(self) -> bool:
        """Whether its bytes on the host may still be fetched."""
        return self.left > 0

    def leave(self) -> None:
        """Lets the memory of the device go, once the host has the bytes."""
        if self.host is None:
            return
        if self.out is not None:
            self.out.wait()
        self.out = self.here = None

    def arrive(self) -> Tensor | None:
        """Returns what was fetched, after its copy; None if nothing was."""
        came = self.coming
        if self.back is not None:
            self.back.wait()
        self.coming = self.back = None
        return came


class Parked:
    """The storages of one step that are copied to host memory. `places`: theirs in the slab."""

    def __init__(
        self,
        places: Mapping[int, Place],
        tier: Tier,
        slab: Slab,
        state: StateOnHost | None = None,
    ) -> None:
        """`state`: groups of optimizer state that leave, too."""
        _define()
        self._state = state
        self._places = places
        self._tier = tier
        self._slab = slab
        self._copies: dict[int, _Copy] = {}
        self._forward = 0
        self._lives: list[weakref.ref[Any]] = []
        self.fetched = 0  # how often a storage came back
        self.sent_bytes = 0
        self.key = next(_keys)
        _known[self.key] = self

    def begins(self, life: object) -> None:
        """Begins a forward, of which autograd keeps something as long as `life` is alive."""
        self._forward += 1
        over = quiet(partial(_over, weakref.ref(self), self._forward))
        self._lives.append(weakref.ref(life, over))

    def send(self, storage: int, tensor: Tensor) -> bool:
        """Begins to copy a storage that was just made to the host. What is larger than in the plan,
        as that of a larger input, stays. Returns False if it stays because an earlier step still
        needs its place."""
        return alone(self._send, storage, tensor)

    def _send(self, storage: int, tensor: Tensor) -> bool:
        place, earlier = self._places[storage], self._copies.pop(storage, None)
        if earlier is not None:  # of a forward whose graph was dropped
            _settle(earlier)
            earlier.left = 0
        whole = bytes_of(tensor.untyped_storage())
        copy = _Copy(whole, tensor.dtype, whole.device, place.fetches, self._forward)
        self._copies[storage] = copy
        size = whole.numel()
        if size > place.bytes:
            return True
        if not self._slab.claim(place.at, size, copy):
            return False
        copy.host = self._slab.memory[place.at : place.at + size]
        copy.out = self._tier.out(whole, copy.host)
        self.sent_bytes += size
        return True

    def sent(self, storage: int) -> None:
        """Lets a storage go that was sent, after its copy."""
        copy = self._copies.get(storage)
        if copy is not None:
            alone(copy.leave)
        elif self._state is not None:
            self._state.sent(storage)

    def fetch(self, storage: int) -> None:
        """Allocates the memory of a storage, and begins to copy it back."""
        copy = self._copies.get(storage)
        if copy is not None and copy.here is None and copy.coming is None:
            alone(self._fetch, copy)
        elif copy is None and self._state is not None:
            self._state.fetch(storage)

    def _fetch(self, copy: _Copy) -> None:
        assert copy.host is not None
        copy.coming = torch.empty(copy.host.numel(), dtype=torch.uint8, device=copy.device)
        copy.back = self._tier.back(copy.host, copy.coming)

    def take(self, storage: int) -> Tensor:
        """Returns a storage that comes back, as one long tensor; fetches it now if that has not
        begun."""
        copy = self._copies.get(storage)
        if copy is None:
            raise RepriseError(f"storage {storage} was never sent to host memory")
        if copy.host is None:
            assert copy.here is not None
            whole = copy.here.clone()
        else:
            if copy.coming is None:
                copy.leave()
                self._fetch(copy)
            came = copy.arrive()
            assert came is not None
            whole = came
        copy.left = max(0, copy.left - 1)
        self.fetched += 1
        made = torch.empty(0, dtype=copy.dtype, device=whole.device)
        length = whole.numel() // copy.dtype.itemsize
        return made.set_(whole.untyped_storage(), 0, (length,), (1,))

    # ---- What the program writes, and ends ----------------------------------------------

    def waits(self) -> bool:
        """Returns whether a copy reads memory that the program may write."""
        return any(copy.here is not None for copy in self._copies.values())

    def holds(self, storages: Iterable[int]) -> bool:
        """Returns whether a copy reads one of these storages."""
        mine = {_id(copy.here) for copy in self._copies.values() if copy.here is not None}
        return not mine.isdisjoint(storages)

    def before_write(self, tensors: Sequence[Tensor]) -> None:
        """Ends the copies that read what is about to be written."""
        written = {_id(tensor) for tensor in tensors}
        for copy in self._copies.values():
            if copy.here is None or _id(copy.here) not in written:
                continue
            if copy.host is None:
                copy.here = alone(copy.here.clone)
            else:
                alone(copy.leave)

    def drain(self, forward: int | None = None) -> None:
        """Waits for all copies, and lets the device's memory go; `forward`: those of one forward.
        What is on the host stays there."""
        for copy in self._copies.values():
            if forward is None or copy.forward == forward:
                alone(_settle, copy)

    def let_go(self) -> None:
        """Needs nothing on the host any more, unless autograd still has something of a forward."""
        if all(life() is None for life in self._lives):
            self.drain()
            for copy in self._copies.values():
                copy.left = 0

    def __del__(self) -> None:
        quietly(self.drain)


def _settle(copy: _Copy) -> None:
    copy.leave()
    copy.arrive()


def _over(parked: weakref.ref[Parked], forward: int, _: object) -> None:
    """Ends the copies of a forward of which autograd has let everything go."""
    known = parked()
    if known is not None:
        known.drain(forward)


def _id(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


# ---- A call that brings a storage back, as both engines record it ------------------------

_keys = itertools.count(1)
_known: weakref.WeakValueDictionary[int, Parked] = weakref.WeakValueDictionary()
OPERATOR = "reprise::fetched"


def fetched(key: int, storage: int) -> Tensor:
    """Returns a storage of the step with this key, after it was fetched. To be called where no mode
    sees it."""
    return _known[key].take(storage)


def fetch(key: int, storage: int) -> Node:
    """Returns the record of that call. It can always run again: the host has the bytes for as long
    as they are needed."""
    node = Node(fetched, 0)
    node.args, node.flat, node.fetches = [key, storage], [], True
    return node


@cache
def _define() -> torch.library.Library:
    """Makes `fetched` an operator of torch, as which the native engine calls it; once, and for as
    long as the process lives. It has no tensor argument, so it is found by the key of those."""
    library = torch.library.Library("reprise", "FRAGMENT")
    library.define("fetched(int key, int storage) -> Tensor")
    library.impl("fetched", fetched, "BackendSelect")
    return library
