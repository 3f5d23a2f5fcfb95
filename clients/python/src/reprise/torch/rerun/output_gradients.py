# SPDX-License-Identifier: Apache-2.0
"""Copies of the gradients of a model's outputs, in host memory that is used step after step.

    copies = OutputGradients(small)
    copy = copies.keep(position, grad)    # in the place of the last one of this output
    copy.tensor()                         # as it came

A new mapping would be paged in every time, which takes longer than the copy. From a GPU a gradient
is copied while the backward goes on (not run on one).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals.host import host_bytes

__all__ = ["Arrived", "OutputGradients"]


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
        """The bytes of host memory that the copy takes."""
        return self._flat.nbytes

    def fits(self, grad: Tensor) -> bool:
        """Returns whether a gradient can be copied to the place of this one."""
        return _form_of(grad) == self._form

    def take(self, grad: Tensor) -> None:
        """Copies a gradient to the place of the one before."""
        flat = grad.detach().as_strided((len(self._flat),), (1,), grad.storage_offset())
        self._flat.copy_(flat, non_blocking=True)

    def tensor(self) -> Tensor:
        """Returns the gradient on the device that it came from, with its strides: kernels may
        choose another algorithm for others."""
        size, stride, _, device = self._form
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        made = torch.empty_like(self._flat, device=device)
        return made.copy_(self._flat).as_strided(size, stride)


class OutputGradients:
    """The copies of one model: one per output, by its position."""

    def __init__(self, small: int) -> None:
        """Keeps no copies yet. The memory of those above `small` bytes is not kept for the next
        step."""
        self._small = small
        self._copies: dict[int, Arrived] = {}

    def keep(self, position: int, grad: Tensor) -> Arrived:
        """Returns a copy of the gradient of an output, which is valid until the next one."""
        known = self._copies.pop(position, None)
        if known is None or not known.fits(grad):
            known = Arrived(grad)
        else:
            known.take(grad)
        if known.nbytes <= self._small:
            self._copies[position] = known
        return known

    def clear(self) -> None:
        """Releases the memory."""
        self._copies.clear()


def _form_of(grad: Tensor) -> tuple[Any, ...]:
    return grad.size(), grad.stride(), grad.dtype, grad.device


def _spanned(tensor: Tensor) -> int:
    """Returns the number of elements from the first to the last one in memory, gaps included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
