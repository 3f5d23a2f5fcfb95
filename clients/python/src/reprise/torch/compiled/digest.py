# SPDX-License-Identifier: Apache-2.0
"""128-bit digests of the bytes of a tensor.

    digest(tensor)                       # of its elements, in the order in which they are stored
    digest(gradient, like=parameter)     # in the order in which another tensor's are stored

Equal bytes have equal digests; different bytes have different ones, except by chance. A check
compares a value with one that no longer exists by their digests, without a copy (check/values.py).
The native engine computes them if it is built (compiled/digest.h: one pass, at the speed of
memory), otherwise hashlib. Digests are only compared with those of the same process.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch
from torch import Tensor

from reprise.torch.compiled import fast

__all__ = ["digest"]

_CHUNK = 1 << 20  # bytes that are copied at a time if the elements are not contiguous


def digest(tensor: Tensor, like: Tensor | None = None) -> bytes:
    """Returns the digest of a tensor without calling any mode. For a sparse tensor it covers
    indices and values."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        guard = torch._C._DisableTorchDispatch()
        try:
            return _digest(tensor.detach(), tensor if like is None else like)
        finally:
            del guard


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
    order = sorted(range(tensor.dim()), key=lambda dim: -like.stride()[dim])
    _take(hashed, tensor.permute(order))
    return hashed.digest()


def _take(hashed: Any, tensor: Tensor) -> None:
    """Adds the elements of a tensor to the hash, in chunks."""
    size = tensor.numel() * tensor.element_size()
    if size > _CHUNK and tensor.dim():
        rows = max(1, len(tensor) * _CHUNK // size)
        for first in range(0, len(tensor), rows):
            part = tensor[first : first + rows]
            _take(hashed, part if rows > 1 else part[0])
    elif size:
        flat = tensor.cpu().contiguous()
        hashed.update((ctypes.c_char * size).from_address(flat.data_ptr()))
