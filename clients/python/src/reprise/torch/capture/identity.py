# SPDX-License-Identifier: Apache-2.0
"""Identifies the storages and tensor objects of a captured step, and notices when they die.

    storages = Storages(ops, parameters)
    storage = storages.of(tensor)                     # the storage of a tensor, known or new
    storages.add_program_object(tensor, storage)      # a tensor object of the program
    storages.add_autograd_object(alias)               # a tensor object of autograd's

Everything is followed by weak references: that of a storage object tells when the memory is freed,
those of tensor objects when the program itself, and not autograd, releases them. Times are given as
the number of the last op that has run. No tensor is held.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reprise.torch.capture.captured import CapturedOp, CapturedStorage
from reprise.torch.internals.guard import quiet
from reprise.torch.internals.subclass import lacks_memory

__all__ = ["Storages"]


class Storages:
    """The storages of one step. `parameters` are the names of parameters, by storage."""

    def __init__(self, ops: list[CapturedOp], parameters: dict[int, str]) -> None:
        self.all: list[CapturedStorage] = []
        self._ops = ops
        self._parameters = parameters
        self._by_cdata: dict[int, CapturedStorage] = {}
        self._objects: dict[int, weakref.ref[Tensor]] = {}
        self._autograd_objects: dict[int, weakref.ref[Tensor]] = {}
        # What autograd keeps instead of a storage, which would be alive for as long.
        self._copies: dict[int, tuple[weakref.ref[Any], CapturedStorage]] = {}
        self.held = False  # whether a plan may hold storages for longer than the program does

    def of(self, tensor: Tensor) -> CapturedStorage | None:
        """Returns the storage of a tensor, which is registered if it is new; None if there is none.
        A storage that is viewed with another element type (`view_as_complex`, `view(dtype)`) is
        pinned, because a replay makes it with the type that it was made with."""
        if lacks_memory(tensor):
            return None
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        cdata = storage._cdata
        known = self._by_cdata.get(cdata)
        if known is not None and known.watch is not None and known.watch() is storage:
            known.pinned |= known.dtype != tensor.dtype
            return known
        at = len(self._ops) - 1
        prior = at == 0
        seen = CapturedStorage(storage.nbytes(), max(at, 0), prior, tensor.dtype)
        if cdata in self._parameters:
            seen.name, seen.category, seen.prior = self._parameters[cdata], 1, True

        seen.watch = weakref.ref(storage, quiet(partial(self._died, seen)))
        self._by_cdata[cdata] = seen
        self.all.append(seen)
        return seen

    def name(self, names: dict[int, tuple[str, int]]) -> None:
        """Notes name and category of storages that are alive now, of those that are known."""
        for cdata, (name, category) in names.items():
            seen = self._by_cdata.get(cdata)
            if seen is not None and seen.death is None:
                seen.name, seen.category = name, category

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Notes that a known storage was emptied, if it was."""
        seen = self._by_cdata.get(storage._cdata)
        if seen is not None and not storage.nbytes():
            seen.emptied.append(len(self._ops) - 1)

    def came_back(self, seen: CapturedStorage, tensor: Tensor) -> None:
        """Notes that a storage has come back from the host, as the storage of `tensor`."""
        storage = tensor.untyped_storage()
        if seen.watch is None or seen.watch() is not storage:
            seen.watch = weakref.ref(storage, quiet(partial(self._died, seen)))
            self._by_cdata[storage._cdata] = seen

    def _died(self, seen: CapturedStorage, _: Any) -> None:
        """Notes that a storage died."""
        seen.death = len(self._ops) - 1

    def kept_apart(self, seen: CapturedStorage, copy: Any) -> None:
        """Notes what autograd keeps instead of a storage, as a copy on the host: the storage counts
        as alive until that dies."""
        if id(copy) in self._copies:
            return

        def gone(_: Any) -> None:
            seen.kept_until = len(self._ops) - 1
            if seen.death is not None:
                seen.death = len(self._ops) - 1

        self._copies[id(copy)] = (weakref.ref(copy, quiet(gone)), seen)

    def add_program_object(self, tensor: Tensor, storage: CapturedStorage) -> None:
        """Counts a tensor object as the program's until it dies."""
        key = id(tensor)
        if key in self._objects:
            return
        storage.holders += 1

        def gone(_: Any) -> None:
            if self._objects.pop(key, None) is not None:
                storage.holders -= 1
                if storage.holders == 0:
                    storage.release = len(self._ops) - 1

        self._objects[key] = weakref.ref(tensor, quiet(gone))

    def add_autograd_object(self, tensor: Tensor) -> None:
        """Counts a tensor object as autograd's until it dies."""
        key = id(tensor)

        def gone(_: Any) -> None:
            self._autograd_objects.pop(key, None)

        self._autograd_objects[key] = weakref.ref(tensor, quiet(gone))

    def is_autograd_object(self, tensor: Tensor) -> bool:
        """Returns whether a tensor object belongs to autograd, not to the program."""
        return id(tensor) in self._autograd_objects

    def finish(self) -> None:
        """Ends the step: storages that are alive now outlive it."""
        last = len(self._ops) - 1
        for storage in self.all if self.held else ():
            # Not what a record of the plan holds so that an op can run again.
            kept = max(storage.release, storage.kept_until)
            if kept and storage.death is not None and not storage.holders:
                storage.death = kept
        for copy, storage in self._copies.values():
            if copy() is not None:
                storage.death = None
        for storage in self.all:
            storage.watch = None
            if storage.holders > 0:
                storage.release = last
        self._objects.clear()
        self._autograd_objects.clear()
