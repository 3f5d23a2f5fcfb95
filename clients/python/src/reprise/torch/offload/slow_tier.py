# SPDX-License-Identifier: Apache-2.0
"""The tier of the CPU: memory that is as slow as a link to a host would be.

    tier = SlowTier(1_000_000_000)       # bytes per second, each way

A CPU has no other memory than its own, so this saves nothing. It is there so that plans that use
host memory run from end to end where there is no GPU: the block is memory that meters do not
count, and two threads copy, no faster than the rate. Waiting for a copy blocks the program.
Environment: REPRISE_SLOW_TIER is the rate, such as 500MB/s (default 1GB/s).
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
import time
from typing import NamedTuple

import torch
from torch import Tensor

from reprise.base.budget import size_of
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.torch.internals.outside import hide, host_buffer
from reprise.torch.offload.slab import Slab

_CHUNK = 1 << 18


class _Copy(NamedTuple):
    target: int
    source: int
    size: int
    done: threading.Event

    def wait(self) -> None:
        """Blocks until the copy has ended."""
        self.done.wait()


class _Engine:
    """One direction: a thread that copies, first in, first out."""

    def __init__(self, name: str, bytes_per_s: int) -> None:
        self._asked: queue.SimpleQueue[_Copy] = queue.SimpleQueue()
        self._ns_per_byte = 1e9 / bytes_per_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin(self, source: Tensor, target: Tensor) -> _Copy:
        copy = _Copy(target.data_ptr(), source.data_ptr(), source.numel(), threading.Event())
        self._asked.put(copy)
        return copy

    def _run(self) -> None:
        while True:
            copy = self._asked.get()
            begin = time.monotonic_ns()
            for at in range(0, copy.size, _CHUNK):
                size = min(_CHUNK, copy.size - at)
                ctypes.memmove(copy.target + at, copy.source + at, size)
                early = begin + (at + size) * self._ns_per_byte - time.monotonic_ns()
                if early > 0:
                    time.sleep(early / 1e9)
            copy.done.set()


class SlowTier:
    """Host memory beside the CPU's own, behind two threads."""

    least_bytes = 1 << 16

    def __init__(self, bytes_per_s: int | None = None) -> None:
        rate = bytes_per_s or _rate()
        self.name = f"slow tier, {format_bytes(rate)}/s"
        self._rate = rate
        self._slab: Slab | None = None
        self._out: _Engine | None = None
        self._in: _Engine | None = None

    def slab(self, size: int) -> Slab:
        """Returns a block of at least so many bytes. Raises RepriseError if there is no memory for
        it."""
        if self._slab is None or self._slab.memory.numel() < size:
            try:
                memory = torch.frombuffer(host_buffer(max(1, size)), dtype=torch.uint8)
            except (OSError, MemoryError, ValueError) as error:
                raise RepriseError(
                    f"host memory: the system does not give {format_bytes(size)} ({error})"
                ) from None
            self._slab = Slab(hide(memory))
        return self._slab

    def out(self, source: Tensor, target: Tensor) -> _Copy:
        """Begins to copy to the block."""
        if self._out is None:
            self._out = _Engine("reprise-out", self._rate)
        return self._out.begin(source, target)

    def back(self, source: Tensor, target: Tensor) -> _Copy:
        """Begins to copy from the block."""
        if self._in is None:
            self._in = _Engine("reprise-in", self._rate)
        return self._in.begin(source, target)


def _rate() -> int:
    text = os.environ.get("REPRISE_SLOW_TIER", "1GB/s")
    return size_of("REPRISE_SLOW_TIER", text.removesuffix("/s"), "a rate such as 500MB/s")
