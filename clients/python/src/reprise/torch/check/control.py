# SPDX-License-Identifier: Apache-2.0
"""Why values that were made again differ from those that were given up: one step that finds out.

    run.audit = Control(slots)           # a step after the one in which they differed
    found.unwritten, found.noisy, found.unexplained
    run.audit = Control(slots, found)    # and one more

Every call that is made again is made twice, from the same inputs. What then differs is not the
plan's doing:

- Some kernels leave bytes unwritten (reserved space, padding, seeds that nothing will read). They
  hold whatever the memory held, differ every time and always in the same places: `unwritten`.
- Some kernels add in an order that changes from run to run (atomics). What they make differs in
  places that change, too, and so does all that is computed from it: `noisy`, and nothing to be run
  again.

What differs where neither is the case is the plan's: `unexplained`.

Autograd gets copies of what was given up in this step, so its gradients are those without a plan
whatever is found. The copies are of the suspects alone; they and the second results make this one
step larger than planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from reprise.torch.check.values import Audit
from reprise.torch.ground.geometry import geometry_of
from reprise.torch.ground.outside import OutsideCopy

__all__ = ["Control"]

# Of what was never written, so much may have been the same twice by chance.
CHANCE = 0.01

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Control(Audit):
    """One step; `suspects`: slots whose values differed."""

    def __init__(self, suspects: Iterable[int], before: Control | None = None) -> None:
        super().__init__()
        self.suspects = frozenset(suspects)
        self.rounds: int = 1 if before is None else before.rounds + 1
        self.noisy: set[int] = set() if before is None else before.noisy  # ops of the step graph
        self.unwritten: set[int] = set()  # slots
        self.unexplained: list[int] = []  # slots
        # Storage -> its elements that were not the same twice.
        self._unsteady: dict[int, Tensor] = {} if before is None else before._unsteady

    def keep(self, slot: int, tensor: Tensor) -> Any:
        if slot not in self.suspects:
            return super().keep(slot, tensor)
        guard = torch._C._DisableTorchDispatch()  # the tape counts what it sees
        try:
            return OutsideCopy(tensor)
        finally:
            del guard

    def compare(self, slot: int, made: Tensor, kept: Any, storage: int) -> Tensor:
        if not isinstance(kept, OutsideCopy):
            return super().compare(slot, made, kept, storage)
        self.checked += 1
        with torch.no_grad():
            copy = kept.tensor().detach()
            one, other = _bits(made.detach()), _bits(copy)
            known = self._unsteady.get(storage)
            if known is None:
                if not torch.equal(one, other):
                    self.unexplained.append(slot)
            else:
                unsteady = known.as_strided(*geometry_of(made))
                differ = torch.ne(one, other)
                many = int(torch.count_nonzero(differ))
                differ.logical_and_(unsteady)
                if many - int(torch.count_nonzero(differ)) > many * CHANCE:
                    self.unexplained.append(slot)
                else:
                    self.unwritten.add(slot)
        return copy

    def twice(self, op: int, storages: Iterable[int | None], first: Any, second: Any) -> None:
        """A call was made twice; `storages`: the plan's numbers of what it makes, by output."""
        for storage, one, other in zip(storages, first, second, strict=False):
            left, right = _all_bits(one), _all_bits(other)
            if torch.equal(left, right):
                continue
            self.noisy.add(op)
            if storage is not None and left.shape == right.shape:
                differ = torch.ne(left, right)
                known = self._unsteady.get(storage)
                self._unsteady[storage] = differ if known is None else known.logical_or_(differ)


def _bits(tensor: Tensor) -> Tensor:
    """Its elements as numbers that compare as bits do."""
    kind = _BITS.get(tensor.element_size())
    return tensor if kind is None else tensor.view(kind)


def _all_bits(tensor: Tensor) -> Tensor:
    """Of all of its storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return _bits(tensor.as_strided((count,), (1,), 0))
