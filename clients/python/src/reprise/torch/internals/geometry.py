# SPDX-License-Identifier: Apache-2.0
"""The position of a tensor in its storage."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Geometry", "geometry_of"]

# Sizes, strides, offset.
Geometry = tuple[torch.Size, tuple[int, ...], int]


def geometry_of(tensor: Tensor) -> Geometry:
    """Returns sizes, strides and offset of a tensor."""
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())
