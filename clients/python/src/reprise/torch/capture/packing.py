# SPDX-License-Identifier: Apache-2.0
"""The saved-tensor hooks of a captured step: they record what autograd saves and reads.

    packing = Packing(storages, unpacked, place, ops, host)
    hooks = Hooks(packing.pack, packing.unpack)
    packing.run = run                    # a forward that runs under a plan
    packing.slots                        # what the root's forwards saved, in order

Autograd keeps an alias that does not count as the program's, a copy on the host, or what a plan
keeps of the tensor. In the captured step it counts as alive for as long as autograd keeps that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from reprise.torch.capture.captured import CapturedOp, CapturedStorage, SavedTensor
from reprise.torch.capture.identity import Storages
from reprise.torch.capture.kinds import is_plain
from reprise.torch.capture.place import Place
from reprise.torch.capture.unpacked import Unpacked
from reprise.torch.internals.host import HostSaved, HostSaves
from reprise.torch.internals.saved_hooks import refuse_stale
from reprise.torch.internals.subclass import (
    is_wrapper,
    part_of,
    parts_of,
    saved_alias,
    shape_of,
    version_of,
)
from reprise.torch.internals.traces import program_line


@dataclass(eq=False)
class _Packed:
    """What autograd keeps instead of a tensor."""

    kept: Any
    version: int
    slot: int
    storage: CapturedStorage
    module: str
    source: str

    def plainly(self) -> Tensor:
        """Returns the saved tensor without recording that it was read."""
        kept = self.kept
        if not isinstance(kept, Tensor):
            return kept.plainly()  # type: ignore[no-any-return]
        if version_of(kept) != self.version:
            refuse_stale(kept, self.version)
        return kept


@dataclass(eq=False)
class Packing:
    """The saved-tensor hooks of a captured step."""

    _storages: Storages
    _unpacked: Unpacked
    _place: Place
    _ops: list[CapturedOp]
    _host: HostSaves | None  # where saved tensors go if they do not stay on the device
    slots: list[SavedTensor] = field(default_factory=list)
    aliasing: bool = False  # whether the current op makes an alias for autograd
    run: Any = None  # the step under a plan that keeps the tensors (tape/tape_run.py)

    def pack(self, tensor: Tensor) -> Any:
        """Records that autograd saves a tensor; returns what autograd keeps of it."""
        alias = self._alias(tensor)
        storages = [self._storages.argument(held) for held in parts_of(tensor)]
        part = part_of(tensor)
        plain = tensor if part is None else part
        for storage in storages:
            if storage is not None:
                storage.saved = True
                storage.pinned |= part is None and is_wrapper(tensor)
        storage = storages[0] if storages else None
        if storage is None:
            return alias
        if isinstance(alias, HostSaved):
            self._storages.kept_apart(storage, alias.copy)
        slot = -1
        if self._place.in_region:
            slot = len(self.slots)
            written = len(storage.mutated_by) + 1
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = shape_of(plain)
            op, wrapped = len(self._ops), part is not None
            self.slots.append(SavedTensor(storage, written, shape, dtype, op, in_wrapper=wrapped))
            if not is_plain(plain):
                storage.pinned = True
        elif self._unpacked.keeps():
            # A backward that is itself differentiated keeps it for the next one.
            storage.pinned = True
        version = version_of(alias) if isinstance(alias, Tensor) else 0
        packed = _Packed(alias, version, slot, storage, self._place.module, program_line())
        if not isinstance(alias, (Tensor, HostSaved)):
            self._storages.kept_apart(storage, packed)
        return packed

    def _alias(self, tensor: Tensor) -> Any:
        if type(tensor) is FakeTensor:
            # Only `detach` returns another fake tensor. The alias is autograd's, not the program's.
            self.aliasing = True
            alias = tensor.detach()
            self.aliasing = False
            return alias
        if self.run is not None and self._place.in_region:
            self.aliasing = True
            try:
                return self.run.pack(tensor)
            finally:
                self.aliasing = False
        with torch._C._DisableTorchDispatch():
            on_host = None if self._host is None else self._host.pack(tensor)
        if on_host is not None:
            return on_host
        self.aliasing = True
        try:
            return saved_alias(tensor)
        finally:
            self.aliasing = False

    def unpack(self, packed: Any) -> Tensor:
        """Records that autograd reads a saved tensor, and returns the tensor."""
        if type(packed) is not _Packed:
            # Of a tensor without a storage, such as a sparse one.
            return self._made(packed)
        alias = self._saved_tensor(packed)
        if self._place.running:
            self._place.phase()
            self._unpacked.take(packed.storage, packed.slot, packed.module, packed.source, alias)
            for part in parts_of(alias):
                self._storages.add_autograd_object(part)
        return alias

    def _saved_tensor(self, packed: _Packed) -> Tensor:
        """Returns the saved tensor. If it comes back from the host, or is made again, its storage
        counts as the original one."""
        if isinstance(packed.kept, Tensor):
            return packed.plainly()
        made = self._made(packed.kept)
        if self._place.running:
            self._storages.came_back(packed.storage, made)
        return made

    def _made(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with torch._C._DisableTorchDispatch():
            if isinstance(kept, HostSaved):
                return kept.copy.owner.unpack(kept)
            return self.run.unpack(kept)  # type: ignore[no-any-return]
