# SPDX-License-Identifier: Apache-2.0
"""Where a tensor lies in its storage."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Geometry", "geometry_of"]

# Sizes, strides, offset.
Geometry = tuple[torch.Size, tuple[int, ...], int]


def geometry_of(tensor: Tensor) -> Geometry:
    """How the tensor lies on its storage."""
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())
