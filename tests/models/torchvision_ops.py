# SPDX-License-Identifier: Apache-2.0
"""Lets torchvision be imported beside a CPU build of PyTorch.

The registry's torchvision is built for CUDA: its compiled operators do not load where PyTorch has
none, and its import then fails on two of them that it describes to the tracer. Their signatures are
declared here so that it imports. No case calls them.
"""

from __future__ import annotations

import torch

__all__ = ["declare"]

_NAMES = ("nms", "qnms")
_library: list[torch.library.Library] = []


def declare() -> None:
    """Declares the operators unless a CUDA build of PyTorch brings the real ones. Idempotent."""
    if _library or torch.version.cuda is not None:
        return
    _library.append(torch.library.Library("torchvision", "FRAGMENT"))
    for name in _NAMES:
        _library[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
