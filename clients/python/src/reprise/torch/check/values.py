# SPDX-License-Identifier: Apache-2.0
"""Checks the values of a planned step: what is made again is what was given up, bit for bit.

    run.audit = Audit()                  # before the step
    found = run.take_audit()             # after its backward
    found.checked, found.differing

A plan gives up tensors that autograd has saved, and makes them again for the backward. Where each
of those has the bits it had, the backward computes what it computes without a plan. So the step is
compared with itself: nothing runs twice, no state is put back, and it does not matter what becomes
of the gradients (scaled, clipped, accumulated, used and freed within the backward), how noisy the
kernels of the backward are, or what the model hands to the outside beside its outputs.

Kept of a tensor are 128 bits (compiled/digest.py), so that a checked step takes the memory of any
other planned step. It costs one pass over what is given up, and one over what is made again.

Where values differ, control.py finds out why.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reprise.torch.compiled.digest import digest

__all__ = ["Audit"]


class Audit:
    """Compares recomputed tensors with discarded ones in one checked step."""

    def __init__(self) -> None:
        self.checked = 0
        self.differing: list[int] = []  # slots

    def keep(self, slot: int, tensor: Tensor) -> Any:
        """Returns what `compare` needs later of a tensor that is discarded now."""
        return digest(tensor)

    def compare(self, slot: int, made: Tensor, kept: Any, storage: int) -> Tensor:
        """Compares a recomputed tensor at unpack, and returns the one to hand out. `storage`:
        the plan's number of the storage that it lies in."""
        self.checked += 1
        if digest(made) != kept:
            self.differing.append(slot)
        return made

    def add(self, track: Any) -> None:
        """Adds the comparisons that the native engine made."""
        checked, differing = track.compared()
        self.checked += checked
        self.differing += differing
