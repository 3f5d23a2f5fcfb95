# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of live tensors and their peak since a reset.

    meter = open_meter("cpu")
    meter.start(baseline_bytes)     # alive already: parameters, buffers, optimizer state
    ... a step ...
    meter.peak()                    # most bytes alive since start or reset_peak
    meter.stop()

The meters count the bytes that were requested, without the allocator's rounding, so
that they equal the sizes in the step graph. What was alive before `start` is the
baseline. It stays constant, except for tensors that `start` was given.
docs/measuring.md says what each meter sees and what none of them can see.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Protocol

import torch

from reprise.agent.agent import Agent
from reprise.base.errors import RepriseError
from reprise.torch.internals.guard import quiet
from reprise.torch.meter import probe

MOST_BLOCKS = 1 << 16
# How long the allocations of a step may wait in total for memory that other threads free.
LATE_NS = 1_000_000_000


class Meter(Protocol):
    """Counts the bytes that are alive on one device. What a meter does not do itself, it does as
    this says."""

    @property
    def name(self) -> str:
        """The kind of the meter, as users read it: "probe", "storage" or "cuda"."""

    @property
    def exact(self) -> bool:
        """Whether every allocation of the framework is seen, including those inside ops. It may
        become false while the meter runs."""

    @property
    def why(self) -> str:
        """Why the meter is not exact; empty if it is."""

    def start(self, baseline_bytes: int, alive: Iterable[torch.Tensor] = ()) -> None:
        """Starts counting, with `live()` equal to `baseline_bytes`. `alive` are the tensors that
        these bytes belong to: the meter subtracts those that die."""

    def stop(self) -> None:
        """Stops counting and restores the process. Calling it again does nothing."""
        return

    def live(self) -> int:
        """Returns how many bytes are alive now."""

    def peak(self) -> int:
        """Returns the most bytes alive since `start` or the last `reset_peak`."""

    def reset_peak(self) -> None:
        """Resets the peak to the current value of `live()`."""

    def wait_above(self, most_bytes: int | None) -> bool:
        """Makes allocations of this thread that would bring `live()` above `most_bytes` wait for
        other threads to free memory first, 1 s in total; None ends that. Returns whether that
        time was used up since the last call. Does nothing where memory cannot be freed late."""
        return False

    def take_beyond(self) -> int:
        """Returns an upper bound of the device memory that the allocator needed beyond the
        requested bytes since the last call; 0 if it is not known."""
        return 0

    def blocks(self) -> list[tuple[int, int, int]]:
        """Returns the blocks that `live()` counts, the largest MOST_BLOCKS of them, as (address,
        requested bytes, allocated bytes or 0 if not known). Empty if the meter keeps no list."""
        return []

    def events_begin(self, agent: Agent) -> None:
        """Sends every allocation and free as a record from now on, after one BASELINE record with
        the bytes that are alive."""
        return

    def events_end(self) -> None:
        """Stops recording allocations."""
        return


class ProbeMeter(Meter):
    """Wraps the CPU allocator (probe.cc). It is exact, covers all threads and costs about 0.1 us
    per event."""

    name = "probe"

    # Several models may be measured at once with one probe: a meter that resets the peak saves it
    # for the others first.
    _all: ClassVar[weakref.WeakSet[ProbeMeter]] = weakref.WeakSet()

    def __init__(self) -> None:
        """Loads the probe, but does not install it. Raises RepriseError if it cannot be built or
        loaded."""
        self._probe = probe.load()
        self._kept = 0  # the probe's peak before somebody else's reset
        self._running = False
        # live() minus what the probe has counted since it was loaded.
        self._offset = 0
        # Storages allocated before the probe was installed. It does not see them freed.
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
        """Corrects the offset for blocks that the probe and the given storages do not share. Some
        live storages are older than the probe: they are watched until they die. Some of the probe's
        blocks belong to no tensor in Python: autograd and caches of torch may hold blocks that an
        earlier meter has counted."""
        blocks = {address: size for address, size, _ in self._probed()}
        if len(blocks) == MOST_BLOCKS:
            return  # the list is not complete
        for key, storage in alive.items():
            if blocks.pop(storage.data_ptr(), None) is None:
                self._before[key] = weakref.ref(
                    storage, quiet(partial(self._gone, key, storage.nbytes()))
                )
        self._offset += sum(blocks.values())

    def _gone(self, key: int, size: int, _: object) -> None:
        if self._before.pop(key, None) is not None:
            self._offset -= size

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
        if len(self._all) > 1:
            peak = int(self._probe.reprise_probe_peak())
            for other in self._all:
                other._kept = max(other._kept, peak)
        self._probe.reprise_probe_reset_peak()
        self._kept = 0

    def wait_above(self, most_bytes: int | None) -> bool:
        most = -1 if most_bytes is None else max(0, most_bytes - self._offset)
        return bool(self._probe.reprise_probe_wait_above(most, LATE_NS))

    def blocks(self) -> list[tuple[int, int, int]]:
        known = [storage() for storage in list(self._before.values())]
        older = [(one.data_ptr(), one.nbytes(), 0) for one in known if one is not None]
        return sorted(self._probed() + older, key=lambda one: -one[1])[:MOST_BLOCKS]

    def _probed(self) -> list[tuple[int, int, int]]:
        table = (ctypes.c_uint64 * (2 * MOST_BLOCKS))()
        count = int(self._probe.reprise_probe_blocks(table, MOST_BLOCKS))
        return [(table[2 * i], table[2 * i + 1], 0) for i in range(count)]

    def events_begin(self, agent: Agent) -> None:
        address = agent.address("reprise_alloc")
        if address:
            self._probe.reprise_probe_events_begin(address, self._offset)

    def events_end(self) -> None:
        self._probe.reprise_probe_events_end()
