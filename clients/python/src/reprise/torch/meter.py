# SPDX-License-Identifier: Apache-2.0
"""How many bytes of tensors are alive, and the most that were since a reset.

    meter = open_meter()
    meter.start(baseline_bytes)     # what is alive already: parameters, buffers, optimizer state
    ... a step ...
    meter.peak()                    # most bytes alive since start or reset_peak

One meter at a time, used by the thread that trains. docs/measuring.md says
what each sees and what it cannot.
"""

from __future__ import annotations

from typing import Protocol

from reprise.agent import Agent

__all__ = ["Meter", "open_meter"]


class Meter(Protocol):
    """Counts live bytes of one device."""

    # "probe", "storage" or "cuda"; shown to people and sent with the capabilities.
    name: str

    @property
    def exact(self) -> bool:
        """Every allocation is seen, those inside an op too. May turn false while it runs
        (another profiler took the slot); `why` then says the reason."""

    @property
    def why(self) -> str:
        """Why it is not exact; empty when it is."""

    def start(self, baseline_bytes: int) -> None:
        """Starts counting; live() is `baseline_bytes` now."""

    def stop(self) -> None:
        """Stops counting and leaves the process as it was. Idempotent."""

    def live(self) -> int:
        """Bytes alive now."""

    def peak(self) -> int:
        """Most bytes alive since start or the last reset_peak."""

    def reset_peak(self) -> None:
        """peak() starts again from live()."""

    def events_begin(self, agent: Agent) -> None:
        """From now on every allocation and free is also sent as a record, after one
        BASELINE record with what is alive."""

    def events_end(self) -> None:
        """No more records."""


def open_meter(device: str = "cpu") -> Meter:
    """The best meter that works here for a device ("cpu" or "cuda:0")."""
    raise NotImplementedError
