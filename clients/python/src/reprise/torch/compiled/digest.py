# SPDX-License-Identifier: Apache-2.0
"""128-bit digests of the bytes of a tensor, and its bytes in a file.

    digest(tensor)                       # of its elements, in the order in which they are stored
    digest(gradient, like=parameter)     # in the order in which another tensor's are stored
    size = store(tensor, file, at)       # writes them to a file, in the same order
    load(tensor, file, at)               # reads them into a tensor of the same geometry

Equal bytes have equal digests; different bytes have different ones, except by chance. A check
compares a value with one that no longer exists by their digests, without a copy (check/values.py).
The native engine computes them if it is built (compiled/digest.h: one pass, at the speed of
memory), otherwise hashlib. Digests are only compared with those of the same process.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from reprise.torch.compiled import fast
from reprise.torch.internals.outside import host_buffer

_CHUNK = 1 << 20  # bytes that are copied at a time if the elements are not contiguous


def digest(tensor: Tensor, like: Tensor | None = None) -> bytes:
    """Returns the digest of a tensor without calling any mode. For a sparse tensor it covers
    indices and values."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        return _digest(tensor.detach(), tensor if like is None else like)


def _digest(tensor: Tensor, like: Tensor) -> bytes:
    """Returns the digest of a detached tensor, with its elements in the order of `like`."""
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce() if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()
        parts = (tensor.indices(), tensor.values())
        return b"".join(_digest(part, part) for part in parts)
    if tensor.shape != like.shape or like.layout != torch.strided:
        like = tensor
    library = fast.library()
    if library is not None:
        made: bytes = library.digest(tensor, like)
        return made
    hashed = hashlib.blake2b(digest_size=16)
    for part in _parts(tensor, like):
        flat = part.cpu().contiguous()
        hashed.update(_bytes_of(flat))
    return hashed.digest()


def store(tensor: Tensor, file: int, at: int) -> int:
    """Writes the elements of a strided tensor to a file descriptor, from position `at` on, without
    calling any mode; returns how many bytes that are. Raises OSError."""
    end = at
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        for part in _parts(tensor.detach(), tensor):
            flat = part if _is_direct(part) else _beside(part).copy_(part)
            rest = memoryview(_bytes_of(flat))
            while rest:
                done = os.pwrite(file, rest, end)
                end, rest = end + done, rest[done:]
    return end - at


def load(tensor: Tensor, file: int, at: int) -> None:
    """Reads into a tensor what `store` has written of one that had its geometry. Calls no mode.
    Raises OSError."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        for part in _parts(tensor, tensor):
            direct = _is_direct(part)
            flat = part if direct else _beside(part)
            rest = memoryview(_bytes_of(flat))
            while rest:
                done = os.preadv(file, [rest], at)
                if not done:
                    raise OSError(errno.EIO, "the file ends within a tensor")
                at, rest = at + done, rest[done:]
            if not direct:
                part.copy_(flat)


def _is_direct(part: Tensor) -> bool:
    """Returns whether a part can be written and read where it is."""
    return part.device.type == "cpu" and part.is_contiguous()


def _beside(part: Tensor) -> Tensor:
    """Returns a tensor like a part, on memory that no meter counts: a checked step is as large as
    planned."""
    size = part.numel() * part.element_size()
    return torch.frombuffer(host_buffer(size), dtype=part.dtype).view(part.size())


def _parts(tensor: Tensor, like: Tensor) -> Iterator[Tensor]:
    """Returns the elements of a tensor in the order of those of `like`, in chunks; those of an
    expanded dimension once."""
    for dim in reversed(range(tensor.dim())):
        if tensor.numel() and tensor.stride(dim) == 0 and like.stride(dim) == 0:
            tensor, like = tensor.select(dim, 0), like.select(dim, 0)
    order = sorted(range(tensor.dim()), key=lambda dim: -like.stride()[dim])
    todo = [tensor.permute(order)]
    while todo:
        part = todo.pop()
        size = part.numel() * part.element_size()
        if size > _CHUNK and part.dim():
            rows = max(1, len(part) * _CHUNK // size)
            firsts = range(0, len(part), rows)
            todo += [part[at : at + rows] if rows > 1 else part[at] for at in reversed(firsts)]
        elif size:
            yield part


def _bytes_of(flat: Tensor) -> Any:
    """Returns the bytes of a contiguous tensor in host memory, as long as it lives."""
    return (ctypes.c_char * (flat.numel() * flat.element_size())).from_address(flat.data_ptr())
