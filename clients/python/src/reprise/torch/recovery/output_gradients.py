# SPDX-License-Identifier: Apache-2.0
"""The gradients that have come to the outputs of a model in a backward, in case it runs again.

    arrived = Arrived(grad)
    arrived.fits(another)         # of the same form?
    arrived.take(another)
    arrived.tensor()              # as it came

In host memory that is used step after step: a new mapping would be paged in every time, which takes
longer than the copy. From a GPU it is copied while the backward goes on (not run on one).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals.host import host_bytes

__all__ = ["Arrived"]


class Arrived:
    """A copy in host memory of the gradient of one output."""

    __slots__ = ("_flat", "_form")

    def __init__(self, grad: Tensor) -> None:
        self._form = _form_of(grad)
        count = _spanned(grad) * grad.element_size()
        self._flat = host_bytes(max(1, count), grad.device)[:count].view(grad.dtype)
        self.take(grad)

    @property
    def nbytes(self) -> int:
        """How many bytes of host memory the copy takes."""
        return self._flat.nbytes

    def fits(self, grad: Tensor) -> bool:
        """Is there room for it, as it lies in its memory?"""
        return _form_of(grad) == self._form

    def take(self, grad: Tensor) -> None:
        """In the place of the one before."""
        flat = grad.detach().as_strided((len(self._flat),), (1,), grad.storage_offset())
        self._flat.copy_(flat, non_blocking=True)

    def tensor(self) -> Tensor:
        """Where it came from, with the strides that it had: kernels may choose another algorithm
        for others."""
        size, stride, _, device = self._form
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        made = torch.empty_like(self._flat, device=device)
        return made.copy_(self._flat).as_strided(size, stride)


def _form_of(grad: Tensor) -> tuple[Any, ...]:
    return grad.size(), grad.stride(), grad.dtype, grad.device


def _spanned(tensor: Tensor) -> int:
    """From the first element to the last one, gaps included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
