# SPDX-License-Identifier: Apache-2.0
"""Measures the memory of one GPU through the counters of torch's CUDA allocator.

    meter = CudaMeter(torch.device("cuda:1"))
    meter.start(0)
    ... a step ...
    meter.peak()              # most bytes requested at once since start or reset_peak
    meter.take_beyond()       # device memory that the allocator took beyond that

The counters include every allocation that this process requested on the device, also those that
Python does not see: cuBLAS workspaces, buffers of extensions. Memory allocated without torch's
allocator (NCCL, other libraries) is not included. The counters live on the host, so reading them
never waits for the device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import torch

from reprise.base.errors import RepriseError
from reprise.torch.internals.contracts import ALLOCATOR_SETTINGS
from reprise.torch.meter.meter import MOST_BLOCKS, Meter

NATIVE, ASYNC = "native", "cudaMallocAsync"


def device_index(device: torch.device) -> int:
    """Returns the number of a CUDA device; for a device without a number, that of the current
    one."""
    return torch.cuda.current_device() if device.index is None else device.index


def expandable() -> bool:
    """Returns whether the allocator's segments are expandable, so that it can return their free
    parts when memory is short."""
    settings = (ALLOCATOR_SETTINGS.get() or str)()
    named = [os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")]
    return any("expandable_segments:true" in text.lower() for text in (settings, *named))


def blas_workspace_bytes(device: torch.device) -> int:
    """Returns the bytes that cuBLAS allocates for a stream that has multiplied no matrices before:
    for the thread of the forwards and for that of the backwards, as torch sizes its workspaces, or
    as CUBLAS_WORKSPACE_CONFIG says (`:KiB:COUNT`, repeated)."""
    asked = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if asked:
        return 2 * sum(int(size) * 1024 * int(count) for size, count in asked)
    is_large = torch.cuda.get_device_capability(device)[0] in (9, 10, 12)
    return 2 * (4096 * 8 * 1024 if is_large else 4096 * 1024 * 2 + 16 * 1024 * 8)


class CudaMeter(Meter):
    """The meter of one CUDA device. It reads `requested_bytes`, the figure that a plan predicts.
    The backend cudaMallocAsync does not count requested bytes, so `allocated_bytes` is used
    there."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        """Raises RepriseError if there is no such device or its allocator has no counters."""
        if not torch.cuda.is_available():
            raise RepriseError(f"device {device}: this torch sees no CUDA device")
        backend = torch.cuda.get_allocator_backend()
        if backend not in (NATIVE, ASYNC):
            raise RepriseError(
                f"device {device}: its allocator ({backend}) is not torch's own and does not count "
                "the bytes that are alive"
            )
        self._native = backend == NATIVE
        self._counter = "requested_bytes" if self._native else "allocated_bytes"
        self._index = device_index(device)
        self._expandable = expandable()
        self._highest = 0  # requested at once, since the last take_beyond
        self._highest_taken = 0

    @property
    def exact(self) -> bool:
        """Whether the counted bytes are those that were requested."""
        return self._native

    @property
    def why(self) -> str:
        """Why the meter is not exact; empty if it is."""
        if self._native:
            return ""
        return f"the allocator {ASYNC} does not count the bytes that tensors ask for, only its own"

    def start(self, baseline_bytes: int, alive: Iterable[torch.Tensor] = ()) -> None:
        """Starts a new peak. Both arguments are ignored: the allocator already knows what is
        alive."""
        self.reset_peak()
        self.take_beyond()

    def live(self) -> int:
        return int(self._stats()[self._counter]["all"]["current"])

    def peak(self) -> int:
        stats = self._stats()
        self._note(stats)
        return int(stats[self._counter]["all"]["peak"])

    def reset_peak(self) -> None:
        self._note(self._stats())
        torch.cuda.reset_peak_memory_stats(self._index)

    def take_beyond(self) -> int:
        """Returns the device memory that the allocator needed beyond the requested bytes since the
        last call: its rounding, and free parts of segments that also hold live blocks. A segment
        that is entirely free is not included, because the allocator returns it when memory is
        short."""
        self._note(self._stats())
        beyond = self._highest_taken - self._highest
        self._highest = self._highest_taken = 0
        return max(0, beyond)

    def blocks(self) -> list[tuple[int, int, int]]:
        """Returns the live blocks, largest first, as (address, requested bytes, allocated bytes).
        Empty for cudaMallocAsync, which keeps no list."""
        if not self._native:
            return []
        found = []
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != self._index:
                continue
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    size = block["size"]
                    found.append((address, block.get("requested_size") or size, size))
                address += block["size"]
        return sorted(found, key=lambda one: -one[1])[:MOST_BLOCKS]

    def _stats(self) -> dict[str, Any]:
        # memory_stats() flattens this into 100 entries, which takes eight times as long.
        return torch.cuda.memory_stats_as_nested_dict(self._index)

    def _note(self, stats: dict[str, Any]) -> None:
        """Updates the highest values seen, before somebody resets the allocator's peaks."""
        self._highest = max(self._highest, stats[self._counter]["all"]["peak"])
        taken = stats["allocated_bytes"]["all"]["peak"]
        if self._native and not self._expandable:
            split = stats["inactive_split_bytes"]["all"]["peak"]
            taken = min(taken + split, stats["reserved_bytes"]["all"]["peak"])
        self._highest_taken = max(self._highest_taken, taken)
