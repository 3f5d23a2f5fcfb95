# SPDX-License-Identifier: Apache-2.0
"""Keeps saved tensors in host memory, in the first steps of a job that does not fit without a plan.

    host = HostSaves(model)
    packed = host.pack(tensor)         # in the pack hook; the tensor's memory may be freed now
    tensor = host.unpack(packed)       # in the unpack hook
    host.written(tensor)               # an op has written the tensor
    host.give_back()                   # between steps

Of every storage one copy of all its bytes is kept, whatever views of it are saved: on a GPU in
pinned memory, on the CPU in memory mappings of our own, which the meters of the framework's
allocator do not count. An unpacked tensor has the same position in its storage as the saved one,
and unpacked tensors that overlap share a storage, as the saved ones did. While the original storage
is alive, it is used itself. So kernels see the same strides and alignments, and every bit of their
results is the same.

A copy follows the storage: after `written`, unpacking returns what autograd would have found there.
If a write has moved the version counter, unpacking raises the error that autograd raises: a tensor
without memory keeps the counter.

Parameters and buffers are alive anyway and stay where they are. Copies are synchronous: only a step
or two use them, so they may be slow, and no streams have to be synchronized. (The idea is that of
torch.autograd.graph.save_on_cpu, which copies every saved view separately.)
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from reprise.torch.internals.contracts import HOST_CACHE
from reprise.torch.internals.guard import quiet
from reprise.torch.internals.outside import hide, host_buffer
from reprise.torch.internals.saved_hooks import refuse_stale
from reprise.torch.internals.subclass import Geometry, geometry_of

_COPY = "_reprise_host"


class _Copy:
    """The bytes of one storage; lives as long as a packed tensor needs it."""

    __slots__ = ("__weakref__", "bytes", "device", "host", "owner", "storage")

    def __init__(self, storage: torch.UntypedStorage, owner: HostSaves) -> None:
        self.bytes = storage.nbytes()
        self.device = storage.device
        self.host = host_bytes(self.bytes, self.device)
        self.lives_at(storage)
        self.refresh(storage)
        owner._holds(self.bytes)
        self.owner = owner

    def lives_at(self, storage: torch.UntypedStorage) -> None:
        """Remembers the storage on the device that holds these bytes, while it is alive."""
        self.storage = weakref.ref(storage)
        setattr(storage, _COPY, weakref.ref(self))

    def refresh(self, storage: torch.UntypedStorage) -> None:
        """Copies a storage again that was written after it had been copied."""
        empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
        self.host.copy_(empty.set_(storage, 0, (storage.nbytes(),), (1,)))

    @quiet
    def __del__(self) -> None:
        # A copy whose construction failed has no owner.
        if (owner := getattr(self, "owner", None)) is not None:
            owner._holds(-self.bytes)


class HostSaved:
    """What autograd keeps instead of a tensor."""

    __slots__ = ("copy", "dtype", "geometry", "made", "version", "witness")

    def __init__(self, tensor: Tensor, alias: Tensor, copy: _Copy) -> None:
        self.copy = copy
        # The unpacked tensor. Its memory stays until the autograd node releases this object.
        self.made: Tensor | None = None
        self.dtype = tensor.dtype
        self.geometry: Geometry = geometry_of(tensor)
        # The alias keeps the version counter but not the memory.
        alias.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self.witness = alias
        self.version = alias._version

    def plainly(self) -> Tensor:
        """Returns the tensor without calling dispatch modes."""
        with torch._C._DisableTorchDispatch():
            return self.copy.owner.unpack(self)


class HostSaves:
    """Keeps the saved tensors of a model that does not fit on its device."""

    def __init__(self, model: nn.Module) -> None:
        stay = (*model.parameters(), *model.buffers())
        self._stay = {t.untyped_storage()._cdata for t in stay}
        self.pins = any(t.device.type == "cuda" for t in stay)
        self.bytes = 0  # held now
        self.peak_bytes = 0
        self._pinned = False  # whether memory was pinned since the last give_back

    def pack(self, tensor: Tensor) -> HostSaved | None:
        """Copies a tensor to the host; returns None if it stays on its device. Dispatch modes must
        be disabled around the call."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        plain = tensor.layout == torch.strided and type(tensor) in (Tensor, nn.Parameter)
        strange = tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
        if not plain or strange or not storage.nbytes() or storage._cdata in self._stay:
            return None
        return HostSaved(tensor, tensor.detach(), self._copy_of(storage) or _Copy(storage, self))

    def unpack(self, saved: HostSaved) -> Tensor:
        """Returns the tensor. Raises the RuntimeError that autograd raises if it was modified
        since."""
        if saved.witness._version != saved.version:
            refuse_stale(saved.witness, saved.version, saved.geometry[0])
        if saved.made is not None:
            return saved.made
        copy = saved.copy
        storage = copy.storage()
        made = torch.empty(0, dtype=saved.dtype, device=copy.device)
        if storage is None:
            fresh = torch.empty(copy.bytes, dtype=torch.uint8, device=copy.device)
            fresh.copy_(copy.host)
            storage = fresh.untyped_storage()
            copy.lives_at(storage)
        size, stride, offset = saved.geometry
        saved.made = made.set_(storage, offset, size, stride)
        return saved.made

    def written(self, tensor: Tensor) -> None:
        """Updates the copy of a tensor that was written."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        copy = self._copy_of(storage)
        if copy is not None:
            copy.refresh(storage)

    def give_back(self) -> None:
        """Returns pinned memory to the system once no saved tensor needs it. torch's allocator
        would keep it for good, and allocates it in powers of two."""
        if self._pinned and not self.bytes:
            self._pinned = False
            empty = HOST_CACHE.get()
            if empty is not None:
                empty()

    def _copy_of(self, storage: torch.UntypedStorage) -> _Copy | None:
        reference = getattr(storage, _COPY, None)
        copy: _Copy | None = None if reference is None else reference()
        return copy if copy is not None and copy.owner is self else None

    def _holds(self, bytes: int) -> None:
        self.bytes += bytes
        self._pinned |= self.pins
        self.peak_bytes = max(self.peak_bytes, self.bytes)


def host_bytes(count: int, device: torch.device) -> Tensor:
    """Returns host memory that the allocator of the device does not count."""
    if device.type != "cpu":
        try:
            return torch.empty(count, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # no more pages can be pinned: slower, but just as exact
            return torch.empty(count, dtype=torch.uint8)
    return hide(torch.frombuffer(host_buffer(count), dtype=torch.uint8))
