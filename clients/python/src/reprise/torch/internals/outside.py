# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors in host memory that torch's allocator does not count.

A gradient check must keep a few tensors of a step without adding to its peak: otherwise it would
exceed the very budget that it protects.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals.subclass import bytes_of, is_wrapper, part_of, put_back

# Smaller ones are not worth a mapping.
_MAPPED = 1 << 16


def host_buffer(count: int) -> Any:
    """Returns host memory that no allocator of the framework counts. Large buffers are memory
    mappings, which return to the system at once when they are freed."""
    return mmap.mmap(-1, count) if count >= _MAPPED else bytearray(count)


def hide(tensor: Tensor) -> Tensor:
    """Marks a tensor on such memory as ours, so that accounting skips it; returns the tensor."""
    tensor.untyped_storage()._reprise_hidden = True  # type: ignore[attr-defined]
    return tensor


def is_hidden(storage: torch.UntypedStorage) -> bool:
    """Returns whether a storage is memory of ours that is not counted."""
    return getattr(storage, "_reprise_hidden", False)


def spanned(tensor: Tensor) -> int:
    """Returns the number of elements from the first to the last one in memory, gaps included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))


class OutsideCopy:
    """The content of a tensor, kept outside the allocator; `tensor` makes a tensor of it again. Of
    a tensor that has several others in it, such as a jagged one, and of a nested one, only the
    class or torch itself makes a copy, which the allocator counts."""

    def __init__(self, tensor: Tensor) -> None:
        self._again: Callable[[], Tensor] | None = None
        if is_wrapper(tensor) or tensor.is_nested:
            self._again, self.nbytes = _copy_of(tensor)
            return
        self._size, self._stride = tensor.size(), tensor.stride()
        self._dtype, self._device = tensor.dtype, tensor.device
        self._requires_grad = tensor.requires_grad
        # From the first element to the last one, gaps included, so that the copy has the same
        # strides: with other strides a kernel may choose another algorithm.
        self._flat = spanned(tensor)
        self.nbytes = self._flat * tensor.element_size()
        self._buffer = host_buffer(max(1, self.nbytes))
        if self._flat:
            flat = tensor.detach().as_strided((self._flat,), (1,), tensor.storage_offset())
            self._view().copy_(flat)

    def _view(self) -> Tensor:
        """Returns a tensor that shares the memory of the buffer."""
        return torch.frombuffer(self._buffer, dtype=self._dtype, count=self._flat)

    def tensor(self) -> Tensor:
        """Returns the tensor: on the buffer if its device is the host, otherwise a copy on the
        device."""
        if self._again is not None:
            return self._again()
        if self._flat:
            flat = self._view().to(self._device)
        else:
            flat = torch.empty(0, dtype=self._dtype, device=self._device)
        return flat.as_strided(self._size, self._stride).requires_grad_(self._requires_grad)


def _copy_of(tensor: Tensor) -> tuple[Callable[[], Tensor], int]:
    """Returns a function that makes a tensor that is not plain again, and the bytes of its copy."""
    part, wants = part_of(tensor), tensor.requires_grad
    if part is not None:
        inside, put = OutsideCopy(part), put_back(tensor)
        return lambda: put(inside.tensor()).requires_grad_(wants), inside.nbytes
    copy = tensor.detach().clone()
    # Each caller gets an alias of its own, as it gets a tensor of its own above.
    return lambda: copy.detach().requires_grad_(wants), bytes_of(copy)


def copied(value: Any, copies: list[OutsideCopy]) -> Any:
    """Returns the arguments with every tensor replaced by a copy, and appends the copies to
    `copies`."""

    def copy(tensor: Tensor) -> OutsideCopy:
        copies.append(OutsideCopy(tensor))
        return copies[-1]

    return replaced(value, Tensor, copy)


def restored(value: Any) -> Any:
    """Returns the arguments with every copy replaced by its tensor."""
    return replaced(value, OutsideCopy, OutsideCopy.tensor)


def replaced(value: Any, kind: type[Any], by: Callable[[Any], Any]) -> Any:
    """Returns the arguments with every value of one kind replaced by `by(value)`."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, dict):
        return {key: replaced(v, kind, by) for key, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replaced(v, kind, by) for v in value)
    return value
