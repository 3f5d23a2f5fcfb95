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

Of a tensor, 128 bits are kept in memory (compiled/digest.py) and its bytes in a file
(originals.py), so that a checked step takes the memory of any other planned step. It costs one pass
over what is given up, and one over what is made again. Where a value differs, the original one
takes its place: what a check finds wrong reaches no gradient.

Where values differ, control.py finds out why.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reprise.torch.check.originals import Originals
from reprise.torch.compiled.digest import digest
from reprise.torch.internals.guard import fault, ours

__all__ = ["Audit", "Given"]


class Given(NamedTuple):
    """What is kept of a discarded tensor: its digest, and its place in the file (-1: none)."""

    digest: bytes
    at: int


class Audit:
    """Compares recomputed tensors with discarded ones in one checked step."""

    def __init__(self) -> None:
        self.checked = 0
        self.differing: list[int] = []  # slots
        self.lost = 0  # differing ones of which the original could not be handed out
        self.originals = Originals()

    def keep(self, tensor: Tensor) -> Given | None:
        """Returns what `compare` needs later of a tensor that is discarded now; None if it cannot
        be compared. Never raises an error of our own: the step goes on without the comparison."""
        try:
            made = digest(tensor)
            return Given(made, self.originals.keep(tensor, made))
        except Exception as error:
            if ours(error):
                fault(error)
            return None

    def compare(
        self, slot: int, made: Tensor, given: Given, storage: int, *, fresh: bool
    ) -> Tensor:
        """Compares a recomputed tensor with the discarded one at its unpack, and returns the one to
        hand out. `storage`: the plan's number of the storage that it lies in; `fresh`: nothing else
        of the program is on it. Never raises an error of our own."""
        try:
            return self._compared(slot, made, given, storage, fresh)
        except Exception as error:
            if ours(error):
                fault(error)
            return made

    def _compared(self, slot: int, made: Tensor, given: Given, storage: int, fresh: bool) -> Tensor:
        self.checked += 1
        if digest(made) == given.digest:
            return made
        self.differing.append(slot)
        original = self.original(made if fresh else like(made), given)
        return made if original is None else original

    def original(self, into: Tensor, given: Given) -> Tensor | None:
        """Writes the discarded tensor into one of its geometry, and returns that; None if it is
        lost."""
        if self.originals.restore(given.at, into):
            return into
        self.lost += 1
        return None


def like(tensor: Tensor) -> Tensor:
    """Returns a new tensor with the geometry of another one."""
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
