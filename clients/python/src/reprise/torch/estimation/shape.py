# SPDX-License-Identifier: Apache-2.0
"""A tensor without its memory: its sizes, and a fake one made of them.

shape = Shape.of(tensor)      # RepriseError: it is not strided, or wraps another one
shape.fake(device)            # under a fake mode
shape.resized(0, 64)          # with another batch
shapes_of((args, kwargs))     # with a shape in the place of each tensor
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from reprise.base.errors import RepriseError
from reprise.torch.internals.subclass import is_wrapper


@dataclass(frozen=True, slots=True)
class Shape:
    """What an op can tell of a tensor without reading it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    @staticmethod
    def of(tensor: Tensor) -> Shape:
        """Returns what describes a strided tensor. Raises RepriseError if it is none."""
        if tensor.layout != torch.strided or tensor.is_nested or is_wrapper(tensor):
            raise RepriseError("a tensor that is not strided, or wraps others, has no fake one")
        size, stride = tuple(tensor.size()), tensor.stride()
        return Shape(size, stride, tensor.dtype, tensor.device, tensor.requires_grad)

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.size) * self.dtype.itemsize

    def fake(self, device: torch.device | str | None = None) -> Tensor:
        """Returns a tensor like it, under a fake mode without memory. `device`: another one."""
        where = self.device if device is None else device
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=where)
        return made.requires_grad_(self.requires_grad)

    def resized(self, dimension: int, size: int) -> Shape:
        """Returns the shape with another size in one dimension, dense and in the same order."""
        sizes = [size if n == dimension else extent for n, extent in enumerate(self.size)]
        strides, dense = [0] * len(sizes), 1
        for n in sorted(range(len(sizes)), key=lambda n: (self.stride[n], -n)):
            strides[n], dense = dense, dense * max(1, sizes[n])
        return replace(self, size=tuple(sizes), stride=tuple(strides))


def shapes_of(values: Any) -> Any:
    """Returns a tree of values with a shape in the place of each tensor. Raises RepriseError as
    `Shape.of` does."""
    return tree_map(lambda value: Shape.of(value) if isinstance(value, Tensor) else value, values)
