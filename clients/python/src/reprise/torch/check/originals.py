# SPDX-License-Identifier: Apache-2.0
"""Keeps what a checked step discards in a file, so that the backward of that step reads the
original values whatever is recomputed.

    originals = Originals()              # a checked step begins
    at = originals.keep(tensor, digest)  # a tensor is discarded
    originals.restore(at, made)          # what was recomputed in its place has other bits

A file takes no memory of the job: a checked step needs that of any other planned step. It has no
name, and ends with the step. It lies in TMPDIR, or else in /var/tmp, which is a disk where /tmp may
be memory; one twentieth of what is free there stays free. Tensors with equal bytes are written
once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Hashable
from typing import IO, Any

import torch
from torch import Tensor

from reprise.base.units import format_bytes
from reprise.torch.compiled.digest import load, store
from reprise.torch.internals.guard import described

__all__ = ["Originals"]

# Share of the free space that is left to others.
LEFT = 0.05
_BUFFERED = 1 << 26  # bytes written between two looks at the free space


class Originals:
    """The discarded tensors of one step."""

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
