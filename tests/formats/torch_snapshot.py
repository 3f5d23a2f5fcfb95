# SPDX-License-Identifier: Apache-2.0
"""Writes a memory snapshot with PyTorch's own code, as far as that runs without a GPU.

PyTorch gathers the stack of every allocation and symbolizes them all at once, as for a recorded
history: one list of frames a traceback, shared by the event of the allocation, the events of its
end and the block in its segment. torch.cuda.memory._dump_snapshot writes the file. Only addresses,
sizes and times are made up, which the CUDA allocator would fill in.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from snapshots import BASE, block, event
from torch._C import _profiler  # type: ignore[attr-defined]

ALLOCATIONS = 9000
BYTES = 512


def embed() -> Any:
    return _profiler.gather_traceback(True, True, False)


def attend() -> Any:
    return _profiler.gather_traceback(True, True, False)


def project() -> Any:
    return _profiler.gather_traceback(True, True, False)


def recorded() -> dict[str, Any]:
    """Every third allocation is freed again; what is alive at the end is the peak."""
    places = (embed, attend, project)
    # No two share a traceback: every allocation has its own list of shared frames.
    stacks = _profiler.symbolize_tracebacks([places[i // 3 % 3]() for i in range(ALLOCATIONS)])
    trace: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for i, frames in enumerate(stacks):
        address = BASE + BYTES * i
        trace.append(event("alloc", address, BYTES, 100 + 4 * i, frames))
        state = "active_allocated"
        if i % 3 == 0:
            trace.append(event("free_requested", address, BYTES, 101 + 4 * i, frames))
            trace.append(event("free_completed", address, BYTES, 102 + 4 * i, frames))
            state = "inactive"
        blocks.append(block(address, BYTES, BYTES, state) | {"frames": frames})
    size = BYTES * ALLOCATIONS
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": size,
        "allocated_size": size // 3 * 2,
        "active_size": size // 3 * 2,
        "requested_size": size // 3 * 2,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    return {"segments": [segment], "device_traces": [trace]}


def main(path: str) -> None:
    whole = recorded()
    # All that is missing of the CUDA build.
    torch._C._cuda_memorySnapshot = lambda _context: whole  # type: ignore[attr-defined]
    torch.cuda.memory._dump_snapshot(path)


if __name__ == "__main__":
    main(sys.argv[1])
