# SPDX-License-Identifier: Apache-2.0
"""The tier of a GPU: pinned memory, and two streams that copy.

    tier = CudaTier(device)

The host waits for nothing: a copy waits for the compute stream, and the compute stream for a copy,
by events. All device memory is allocated and freed on the compute stream, by who asks for the
copies; no other stream has blocks of its own, and none is recorded on a block. So a copy that is
late makes a step slower, and never larger. (Not run on a GPU; tests run it on a fake one,
tests/fakegpu.)
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.torch.offload.slab import Slab


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy on one of the two streams."""

    _end: torch.cuda.Event | None
    _stream: torch.cuda.Stream
    _spare: list[torch.cuda.Event]

    def wait(self) -> None:
        """Makes the stream on which the copy was asked for, and the current one, wait until it has
        ended."""
        end, self._end = self._end, None
        if end is None:
            return
        self._stream.wait_event(end)
        current = torch.cuda.current_stream(self._stream.device)
        if current != self._stream:
            current.wait_event(end)
        self._spare.append(end)


class CudaTier:
    """Host memory beside a GPU."""

    least_bytes = 1 << 20

    def __init__(self, device: torch.device) -> None:
        self.name = torch.cuda.get_device_name(device)
        self._device = device
        self._slab: Slab | None = None
        self._pinned: list[tuple[int, mmap.mmap]] = []
        self._out = torch.cuda.Stream(device)
        self._in = torch.cuda.Stream(device)
        self._spare: list[torch.cuda.Event] = []  # events that nobody waits for any more

    def slab(self, size: int) -> Slab:
        """Returns a block of at least so many bytes, of pinned memory. Raises RepriseError if the
        system does not give that, or lets nothing so large be pinned. A block that was too small
        stays until the process ends: a step may still have bytes in it."""
        if self._slab is None or self._slab.memory.numel() < size:
            self._slab = Slab(self._pin(max(1, size)))
        return self._slab

    def _pin(self, size: int) -> Tensor:
        try:
            buffer = mmap.mmap(-1, size)
            memory = torch.frombuffer(buffer, dtype=torch.uint8)
            code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), size, 0))
        except (OSError, MemoryError, ValueError, RuntimeError) as error:
            raise RepriseError(
                f"host memory: the system does not give {format_bytes(size)} ({error})"
            ) from None
        if code:
            raise RepriseError(
                f"host memory: {format_bytes(size)} cannot be pinned (CUDA error {code}); "
                "see ulimit -l, and the memory of the container"
            )
        self._pinned.append((memory.data_ptr(), buffer))
        return memory

    def out(self, source: Tensor, target: Tensor) -> _Copy:
        """Begins to copy to the block, after what the current stream has to do so far."""
        return self._begin(self._out, source, target)

    def back(self, source: Tensor, target: Tensor) -> _Copy:
        """Begins to copy from the block, after what the current stream has to do so far: until then
        the memory may belong to others."""
        return self._begin(self._in, source, target)

    def _begin(self, engine: torch.cuda.Stream, source: Tensor, target: Tensor) -> _Copy:
        home = torch.cuda.current_stream(self._device)
        ready = self._event()
        ready.record(home)
        engine.wait_event(ready)
        self._spare.append(ready)
        with torch.cuda.stream(engine):
            target.copy_(source, non_blocking=True)
            end = self._event()
            end.record(engine)
        return _Copy(end, home, self._spare)

    def _event(self) -> torch.cuda.Event:
        return self._spare.pop() if self._spare else torch.cuda.Event()
