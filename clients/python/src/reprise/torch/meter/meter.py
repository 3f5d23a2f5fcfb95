# SPDX-License-Identifier: Apache-2.0
"""How many bytes of tensors are alive, and the most that were since a reset.

    meter = open_meter("cpu")
    meter.start(baseline_bytes)     # alive already: parameters, buffers, optimizer state
    ... a step ...
    meter.peak()                    # most bytes alive since start or reset_peak
    meter.stop()

Bytes are those asked of the allocator, without its rounding, so that they are
the sizes of the step graph. What was alive before `start` is the baseline, which
stays, but for tensors that the meter is told of. docs/measuring.md says what each
meter sees and what none of them can.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol

import torch

from reprise.agent import Agent
from reprise.errors import RepriseError
from reprise.torch.internals.guard import quiet
from reprise.torch.meter import probe
from reprise.torch.meter.cuda_meter import MOST_BLOCKS, CudaMeter
from reprise.torch.meter.storage_meter import StorageMeter

__all__ = ["CudaMeter", "Meter", "ProbeMeter", "StorageMeter", "open_meter"]


class Meter(Protocol):
    """Counts the bytes that are alive on one device."""

    @property
    def name(self) -> str:
        """ "probe", "storage" or "cuda"; shown to people."""

    @property
    def exact(self) -> bool:
        """Every allocation of the framework is seen, those inside an op too. May turn false
        while it runs."""

    @property
    def why(self) -> str:
        """Why it is not exact; empty when it is."""

    @property
    def has_events(self) -> bool:
        """events_begin sends records; without, only peaks are known."""

    def start(self, baseline_bytes: int, alive: Iterable[torch.Tensor] = ()) -> None:
        """Starts counting: live() is `baseline_bytes` now. `alive`: the tensors which that is of;
        a meter that is told them sees them go."""

    def stop(self) -> None:
        """Stops counting and leaves the process as it was. Idempotent."""

    def live(self) -> int:
        """Returns how many bytes are alive now."""

    def peak(self) -> int:
        """Most bytes alive since start or the last reset_peak."""

    def reset_peak(self) -> None:
        """Makes peak() start again from live()."""

    def take_beyond(self) -> int:
        """Bytes that the allocator needed of the device beyond those asked for, at most, since the
        last call. 0 where that is not known."""

    def blocks(self) -> list[tuple[int, int, int]]:
        """What is alive now: address, bytes asked for, bytes set aside (0: not known). The largest
        MOST_BLOCKS of them; none where the meter keeps no list."""

    def events_begin(self, agent: Agent) -> None:
        """From now on every allocation and free is also sent as a record, after one BASELINE
        record with what is alive."""

    def events_end(self) -> None:
        """Stops recording allocations."""


def open_meter(device: str | torch.device = "cpu") -> Meter:
    """The best meter that works here for a device ("cpu", "cuda:0")."""
    device = torch.device(device)
    if device.type == "cuda":
        return CudaMeter(device)
    if device.type != "cpu":
        raise RepriseError(f"device {device}: its memory cannot be measured, only cpu and cuda")
    try:
        return ProbeMeter()
    except RepriseError as error:
        return StorageMeter(str(error))


class ProbeMeter:
    """Wraps the CPU allocator (probe.cc). Exact, on all threads, about 0.1 us per event."""

    name = "probe"
    has_events = True

    # Several models may be measured at once, over one probe: who resets its peak keeps it for the
    # others first.
    _all: ClassVar[weakref.WeakSet[ProbeMeter]] = weakref.WeakSet()

    def __init__(self) -> None:
        """Installs nothing yet. RepriseError: the probe cannot be built or loaded."""
        self._probe = probe.load()
        self._kept = 0  # the probe's peak before somebody else's reset
        self._running = False
        # live() minus what the probe has counted since it was loaded.
        self._offset = 0
        # Storages from before the probe, whose end it does not see.
        self._before: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @property
    def exact(self) -> bool:
        return not self.why

    @property
    def why(self) -> str:
        if self._running and not self._probe.reprise_probe_installed():
            return "another allocator was registered for the CPU while this one was measured"
        return ""

    def start(self, baseline_bytes: int, alive: Iterable[torch.Tensor] = ()) -> None:
        code = int(self._probe.reprise_probe_install())
        if code == 1:
            raise RepriseError(
                "the CPU allocator registered here keeps state in its pointers, "
                "so the memory probe cannot wrap it"
            )
        if code != 0:
            raise RepriseError("the memory probe could not be registered as the CPU allocator")
        self._running = True
        self._all.add(self)
        self._offset = baseline_bytes - int(self._probe.reprise_probe_live())
        self._before.clear()
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in alive}
        if storages:
            self._follow(storages)
        self.reset_peak()

    def _follow(self, alive: dict[int, torch.UntypedStorage]) -> None:
        """Not all that is alive is the probe's, and not all of the probe's is a tensor in Python:
        autograd and caches of torch may hold blocks that an earlier meter has counted."""
        blocks = {address: size for address, size, _ in self.blocks()}
        if len(blocks) == MOST_BLOCKS:
            return  # not all of them
        for key, storage in alive.items():
            if blocks.pop(storage.data_ptr(), None) is None:
                self._before[key] = weakref.ref(storage, quiet(self._gone(key, storage.nbytes())))
        self._offset += sum(blocks.values())

    def _gone(self, key: int, size: int) -> Callable[[object], None]:
        def gone(_: object) -> None:
            if self._before.pop(key, None) is not None:
                self._offset -= size

        return gone

    def stop(self) -> None:
        if self._running:
            self.events_end()
            self._running = False
            self._before.clear()
            self._all.discard(self)
            if not self._all:
                self._probe.reprise_probe_uninstall()

    def live(self) -> int:
        return self._offset + int(self._probe.reprise_probe_live())

    def peak(self) -> int:
        return self._offset + max(self._kept, int(self._probe.reprise_probe_peak()))

    def reset_peak(self) -> None:
        peak = int(self._probe.reprise_probe_peak())
        for other in self._all:
            other._kept = max(other._kept, peak)
        self._probe.reprise_probe_reset_peak()
        self._kept = 0

    def take_beyond(self) -> int:
        """What malloc takes beyond is not known."""
        return 0

    def blocks(self) -> list[tuple[int, int, int]]:
        table = (ctypes.c_uint64 * (2 * MOST_BLOCKS))()
        count = int(self._probe.reprise_probe_blocks(table, MOST_BLOCKS))
        return [(table[2 * i], table[2 * i + 1], 0) for i in range(count)]

    def events_begin(self, agent: Agent) -> None:
        address = agent.alloc_function()
        if address is not None:
            self._probe.reprise_probe_events_begin(address, self._offset)

    def events_end(self) -> None:
        self._probe.reprise_probe_events_end()
