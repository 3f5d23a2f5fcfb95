# SPDX-License-Identifier: Apache-2.0
"""Why values that were made again differ from those that were given up: one step that finds out.

    run.audit = Control(slots, ops)          # a step after the one in which they differed
    found.unwritten, found.noisy, found.unexplained
    run.audit = Control(slots, ops, found)   # and one more

Every call that is made again is made twice, from the same inputs. What then differs is not the
plan's doing:

- Some kernels leave bytes unwritten (reserved space, padding, seeds that nothing will read). They
  hold whatever the memory held, differ every time and always in the same places: `unwritten`. A
  storage that is only allocated holds nothing else, until calls write into it: each of those is
  made once more on a copy whose unwritten bytes are other ones, and what then differs is what it
  has left unwritten, or made of such bytes.
- Some kernels add in an order that changes from run to run (atomics). What they make differs in
  places that change, too, and so does all that is computed from it: `noisy`, and nothing to be run
  again.

What differs where neither is the case is the plan's: `unexplained`.

The same step finds out which of these calls write a buffer of the model (written.py) each time they
are made: `writers`. What they have written is taken back.

As in every checked step, the backward reads the original values, so gradients are those without a
plan whatever is found. The second results make this one step larger than planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from reprise.torch.check.values import Audit, Given, like
from reprise.torch.compiled.digest import digest
from reprise.torch.internals.outside import OutsideCopy
from reprise.torch.internals.subclass import geometry_of

# Share of the elements that a kernel never wrote that may have been the same twice by chance.
CHANCE = 0.01

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Control(Audit):
    """One step. `suspects`: slots whose values differed; `allocating`: ops of the step graph that
    write nothing of what they make; `before`: the step before this one, where it has not found out
    everything; `buffers`: those that were written once more."""

    def __init__(
        self,
        suspects: Iterable[int],
        allocating: Iterable[int] = (),
        before: Control | None = None,
        buffers: Callable[[], dict[str, Tensor]] = dict,
    ) -> None:
        super().__init__()
        self.suspects = frozenset(suspects)
        self.allocating = frozenset(allocating)
        self.rounds: int = 1 if before is None else before.rounds + 1
        self.noisy: set[int] = set() if before is None else before.noisy  # ops of the step graph
        self.unwritten: set[int] = set()  # slots
        self.unexplained: list[int] = []  # slots
        self.writers: dict[int, set[str]] = {}  # op of the step graph -> buffers
        self._buffers = buffers
        self._standing: list[tuple[str, Tensor, OutsideCopy, bytes]] = []
        # Storage -> its elements that are not the same twice.
        self._unsteady: dict[int, Tensor] = {} if before is None else before._unsteady
        # Storages of which that was seen in two results, which may be alike by chance.
        self._guessed: set[int] = set() if before is None else before._guessed

    def _compared(self, slot: int, made: Tensor, given: Given, storage: int, fresh: bool) -> Tensor:
        """Compares a recomputed tensor with the discarded one, element by element where it is a
        suspect. Returns the tensor that the backward reads."""
        if slot not in self.suspects:
            return super()._compared(slot, made, given, storage, fresh)
        self.checked += 1
        copy = self.original(like(made), given)
        if copy is None:
            if digest(made) != given.digest:
                self.unexplained.append(slot)
            return made
        with torch.no_grad():
            one, other = _bits(made.detach()), _bits(copy)
            known = self._unsteady.get(storage)
            differ = torch.ne(one, other)
            many = int(torch.count_nonzero(differ))
            if known is None:
                within, unsteady = 0, False
            else:
                mask = known.as_strided(*geometry_of(made))
                within = int(torch.count_nonzero(differ.logical_and_(mask)))
                unsteady = bool(mask.any())
            by_chance = many * CHANCE if storage in self._guessed else 0
            if many - within > by_chance:
                self.unexplained.append(slot)
            elif unsteady:
                self.unwritten.add(slot)
        return copy

    # ---- Calls that are made again ----------------------------------------------------

    def begins(self) -> None:
        """Remembers the model's buffers before an op runs."""
        self._standing = [
            (name, buffer, OutsideCopy(buffer), digest(buffer))
            for name, buffer in self._buffers().items()
        ]

    def ends(self, op: int) -> None:
        """Notes the buffers that an op has written, and restores them."""
        for name, buffer, content, before in self._standing:
            if digest(buffer) != before:
                self.writers.setdefault(op, set()).add(name)
                with torch.no_grad():
                    buffer.copy_(content.tensor())
        self._standing = []

    def allocated(self, storages: Iterable[int | None], made: Iterable[Tensor]) -> None:
        """Notes that a call has made storages and written nothing of them."""
        for storage, tensor in zip(storages, made, strict=False):
            if storage is not None:
                self._unsteady[storage] = torch.ones_like(_all_bits(tensor), dtype=torch.bool)

    def twice(self, op: int, storages: Iterable[int | None], first: Any, second: Any) -> None:
        """Compares the results of a call that was made twice from the same bits. `storages`: the
        plan's numbers of the storages that it makes or writes, by output."""
        for storage, one, other in zip(storages, first, second, strict=False):
            left, right = _all_bits(one), _all_bits(other)
            if torch.equal(left, right):
                continue
            self.noisy.add(op)
            if storage is not None and left.shape == right.shape:
                differ = torch.ne(left, right)
                known = self._unsteady.get(storage)
                self._unsteady[storage] = differ if known is None else known.logical_or_(differ)
                self._guessed.add(storage)

    def unsteady(self, storage: int | None) -> bool:
        """Returns whether a storage holds bytes that differ from run to run."""
        known = None if storage is None else self._unsteady.get(storage)
        return known is not None and bool(known.any())

    def flip(self, storage: int | None, copy: Tensor) -> Tensor:
        """Writes other bits into a copy of a storage, wherever it is not the same twice."""
        assert storage is not None
        known = self._unsteady[storage]
        size = copy.element_size()
        rows = torch.empty(0, dtype=torch.uint8, device=copy.device).set_(copy.untyped_storage())
        flips = known.to(torch.uint8).mul_(1 if copy.dtype == torch.bool else 255)
        rows[: known.numel() * size].view(-1, size).bitwise_xor_(flips.unsqueeze(1))
        return copy

    def written(self, storage: int | None, tensor: Tensor, flipped: Tensor) -> None:
        """Notes that a call has written into a storage, and into a copy that `flip` has changed
        before: what differs is what is not the same twice from here on."""
        assert storage is not None
        self._unsteady[storage] = torch.ne(_all_bits(tensor), _all_bits(flipped))


def _bits(tensor: Tensor) -> Tensor:
    """Returns the elements of a tensor as numbers that are equal if their bits are."""
    kind = None if tensor.dtype == torch.bool else _BITS.get(tensor.element_size())
    return tensor if kind is None else tensor.view(kind)


def _all_bits(tensor: Tensor) -> Tensor:
    """Returns all bytes of the tensor's storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return _bits(tensor.as_strided((count,), (1,), 0))
