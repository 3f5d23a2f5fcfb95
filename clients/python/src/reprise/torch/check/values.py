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

Of a tensor, 128 bits are kept in memory (compiled/digest.py) and its bytes in a file (`Originals`),
so that a checked step takes the memory of any other planned step. It costs one pass over what is
given up, and one over what is made again. Where a value differs, the original one takes its place:
what a check finds wrong reaches no gradient.

Where values differ, control.py finds out why.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Hashable
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from reprise.base.units import format_bytes
from reprise.torch.compiled.digest import digest, load, store
from reprise.torch.internals.guard import caught, described


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
            caught(error)
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
            caught(error)
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


# Share of the free space that is left to others.
LEFT = 0.05
_BUFFERED = 1 << 26  # bytes written between two looks at the free space


class Originals:
    """The discarded tensors of one step, in a file.

        originals = Originals()              # a checked step begins
        at = originals.keep(tensor, digest)  # a tensor is discarded
        originals.restore(at, made)          # what was recomputed in its place has other bits

    A file takes no memory of the job. It has no name, and ends with the step. It lies in TMPDIR, or
    else in /var/tmp, which is a disk where /tmp may be memory; one twentieth of what is free there
    stays free. Tensors with equal bytes are written once."""

    def __init__(self) -> None:
        self.missing = ""  # why some are not kept; "" if all are
        self._file: IO[bytes] | None = None
        self._end = self._looked = 0
        self._known: dict[Hashable, int] = {}

    def keep(self, tensor: Tensor, digest: bytes) -> int:
        """Writes a tensor; returns its place, or -1 if it is not kept: there is no room, or it is
        not a strided one."""
        key = digest, tensor.dtype, tensor.size(), tensor.stride()
        at = self._known.get(key, -1)
        plain = tensor.layout == torch.strided and not (tensor.is_conj() or tensor.is_neg())
        if at >= 0 or self.missing or not plain:
            return at
        try:
            file = self._room_for(tensor.numel() * tensor.element_size())
            size = store(tensor, file, self._end)
        except OSError as error:
            self.missing = described(error)
            return -1
        at = self._known[key] = self._end
        self._end += size
        return at

    def restore(self, at: int, made: Tensor) -> bool:
        """Writes into a tensor what was written there, of one with the same geometry. Returns
        whether it was written and could be read."""
        if at < 0 or self._file is None:
            return False
        try:
            load(made, self._file.fileno(), at)
        except OSError as error:
            self.missing = described(error)
            return False
        return True

    def _room_for(self, size: int) -> int:
        """Returns the descriptor of the file. Raises OSError if there is none, or no room in it."""
        if self._file is None:
            self._file = _unnamed()
            self._looked = -_BUFFERED
        file = self._file.fileno()
        if self._end + size - self._looked >= _BUFFERED:
            space = os.fstatvfs(file)
            free = int(space.f_bavail * space.f_frsize)
            if size + _BUFFERED > free * (1 - LEFT):
                raise OSError(f"{format_bytes(free)} are free for it")
            self._looked = self._end
        return file


def _unnamed() -> IO[Any]:
    """Returns a file without a name. Raises OSError if no folder takes one."""
    folders = ["/var/tmp", None]  # None: TMPDIR, or what the system has for temporary files
    for folder in reversed(folders) if os.environ.get("TMPDIR") else folders:
        with contextlib.suppress(OSError):
            return tempfile.TemporaryFile(dir=folder)
    raise OSError("no folder takes a temporary file")
