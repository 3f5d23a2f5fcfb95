# SPDX-License-Identifier: Apache-2.0
"""The storages and tensor objects of a captured step as its ops reveal them: read, made, or alive
before the step; identifies them, and notices when they die.

    storages = Storages(ops, parameters, meter, place)
    storage = storages.argument(tensor)               # the storage that an op reads or writes
    storages.outputs(op, number, arguments, chosen, out)
    storages.ignored(args, kwargs, out)               # of an op that is not recorded
    storage = storages.of(tensor)                     # the storage of a tensor, known or new
    storages.add_program_object(tensor, storage)      # a tensor object of the program
    storages.add_autograd_object(alias)               # a tensor object of autograd's

Everything is followed by weak references: that of a storage object tells when the memory is freed,
those of tensor objects when the program itself, and not autograd, releases them. Times are given as
the number of the last op that has run. No tensor is held.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reprise.torch.capture.captured import FORWARD, CapturedOp, CapturedStorage, Chosen
from reprise.torch.capture.kinds import Exchange, follow
from reprise.torch.capture.place import Place
from reprise.torch.internals.guard import quiet
from reprise.torch.internals.ops import OpKind, outputs_in, tensors_in
from reprise.torch.internals.subclass import lacks_memory, parts_of
from reprise.torch.meter.meter import Meter

_TEMPORARY = 6  # reprise.v1.Category


class Storages:
    """The storages of one step. `parameters` are the names of parameters, by storage."""

    def __init__(
        self, ops: list[CapturedOp], parameters: dict[int, str], meter: Meter, place: Place
    ) -> None:
        self.all: list[CapturedStorage] = []
        self.held = False  # whether a plan may hold storages for longer than the program does
        self.live_begin = 0  # live bytes when the step began
        self._ops = ops
        self._parameters = parameters
        self._meter = meter
        self._place = place
        self._keep_all = 0
        self._by_cdata: dict[int, CapturedStorage] = {}
        self._objects: dict[int, weakref.ref[Tensor]] = {}
        self._autograd_objects: dict[int, weakref.ref[Tensor]] = {}
        self._exchanged: set[tuple[tuple[int, ...], ...]] = set()  # rows, with other ranks
        # What autograd keeps instead of a storage, which would be alive for as long.
        self._copies: dict[int, tuple[weakref.ref[Any], CapturedStorage]] = {}

    # ---- As ops reveal them -------------------------------------------------

    def before(self, prior: Iterable[Tensor], names: dict[int, tuple[str, int]]) -> None:
        """Registers the tensors alive before the step that may die during it, with name and
        category of some."""
        for tensor in prior:
            storage = self.of(tensor)
            if storage is not None:
                cdata = tensor.untyped_storage()._cdata
                storage.name, storage.category = names.get(cdata, (storage.name, storage.category))
                storage.began = storage.bytes
                self.add_program_object(tensor, storage)

    def argument(self, tensor: Tensor) -> CapturedStorage | None:
        """Returns the storage of an argument; None if it has none. A storage that appears for the
        first time gets a synthetic op that makes it, unless it existed before the step."""
        known = len(self.all)
        storage = self.of(tensor)
        if storage is None:
            return None
        new = len(self.all) > known and not storage.prior
        if new and not self._made_unseen(storage):
            storage.birth, storage.prior = 0, True
        elif new:
            storage.birth = len(self._ops)
            external = CapturedOp(None, "reprise.external", self._place.phase(), OpKind.ONCE, False)
            external.writes.append(storage)
            external.live_bytes = external.peak_bytes = self._meter.live()
            self._ops.append(external)
        if not self.is_autograd_object(tensor):
            self.add_program_object(tensor, storage)
        return storage

    def _made_unseen(self, storage: CapturedStorage) -> bool:
        """Returns whether a storage was made in this step by C++ code, rather than before it, where
        Python never saw it (buckets of DistributedDataParallel). It was made before if the known
        storages account for all live bytes without it."""
        if not self._meter.exact:
            return True
        live = self.live_begin
        for seen in self.all:
            if seen is storage:
                continue
            if seen.prior:
                live -= 0 if seen.death is None else seen.bytes
            else:
                live += seen.bytes if seen.death is None else 0
        return self._meter.live() - live >= storage.bytes

    def outputs(
        self,
        op: CapturedOp,
        number: int,
        arguments: tuple[Tensor, ...],
        chosen: Chosen | None,
        out: Any,
    ) -> int:
        """Registers the storages that an op made, and returns their bytes."""
        from_unpacked = any(self.is_autograd_object(t) for t in arguments)
        found: list[CapturedStorage | None] = []
        for tensor in tensors_in(out):
            known = len(self.all)
            storage = self.of(tensor)
            found.append(storage)
            if storage is None:
                continue
            if len(self.all) > known:
                storage.birth, storage.prior = number, False
                storage.in_region = op.in_region
                storage.pinned = self._keep_all > 0
                storage.chosen = chosen or self._followed(op, arguments, tensor)
                storage.name = f"{op.module}.{op.name}" if op.module else op.name
                if op.phase != FORWARD:
                    storage.category = _TEMPORARY
                op.writes.append(storage)
            elif from_unpacked and storage not in op.writes:
                self.add_autograd_object(tensor)
                continue
            self.add_program_object(tensor, storage)
        op.outputs = tuple(found)
        return sum(s.bytes for s in op.writes)

    def _followed(
        self, op: CapturedOp, arguments: tuple[Tensor, ...], tensor: Tensor
    ) -> Chosen | None:
        if all(source.chosen is None for source in op.arguments):
            return None
        return follow(((t, self.of(t)) for t in arguments), tensor)

    def exchanged(self, exchange: Exchange) -> None:
        """Notes how many rows other ranks have sent to this one, unless it is what this one has
        sent them before."""
        splits = exchange.received_from, exchange.sent_to
        storage, is_new = self.of(exchange.made), splits[::-1] not in self._exchanged
        self._exchanged.add(splits)
        if is_new and storage is not None and not storage.prior:
            storage.chosen = storage.chosen or exchange.chosen

    def ignored(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Assigns the outputs of an ignored op to the owner of its inputs: autograd or the
        program."""
        ours = any(self.is_autograd_object(t) for t in tensors_in(*args, kwargs))
        for tensor in tensors_in(out):
            if ours:
                self.add_autograd_object(tensor)
            else:
                self.argument(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Saves this tensor whatever the budget, because the program asks for it."""
        for part in parts_of(tensor):
            storage = self.argument(part)
            if storage is not None:
                storage.pinned = True

    def keep_all(self, on: bool) -> None:
        """Saves everything made from now on whatever the budget, or ends that."""
        self._keep_all += 1 if on else -1

    def pin_outputs(self, outputs: Any) -> None:
        """Pins the outputs of the root's forward: no plan discards them."""
        for tensor in outputs_in(outputs):
            for part in parts_of(tensor):
                storage = self.of(part)
                if storage is not None:
                    storage.pinned = True

    # ---- Identity and death -------------------------------------------------

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
