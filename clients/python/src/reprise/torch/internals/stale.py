# SPDX-License-Identifier: Apache-2.0
"""The errors that our hooks raise for saved tensors that were modified, in autograd's words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reprise.torch.internals.guard import told
from reprise.torch.internals.subclass import version_of

__all__ = ["GONE", "refuse_modified", "refuse_stale", "stale_message"]

GONE = (
    "Trying to backward through the graph a second time: its saved tensors were freed when memory "
    "ran out in its backward"
)


def stale_message(tensor: Tensor, version: int, shape: Sequence[int] | None = None) -> str:
    """Returns autograd's message for a tensor that was packed at `version`. `shape` is given if the
    tensor has lost its own."""
    size = list(tensor.shape if shape is None else shape)
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{tensor.type()} {size}] is at version {version_of(tensor)}; "
        f"expected version {version} instead."
    )


def refuse_stale(tensor: Tensor, version: int) -> None:
    """Raises autograd's error for a saved tensor that was modified after it was packed at
    `version`."""
    raise told(RuntimeError(stale_message(tensor, version)))


def refuse_modified(tensor: Tensor, version: int) -> None:
    """Raises the error for a recorded call whose input was modified, so that it cannot be
    replayed."""
    raise told(
        RuntimeError(
            "a tensor that a recomputed op reads was modified in place after the forward, by "
            f"something that did not do so in the captured step: [{tensor.type()} "
            f"{list(tensor.shape)}] is at version {tensor._version}; expected {version}"
        )
    )
