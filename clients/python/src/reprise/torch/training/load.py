# SPDX-License-Identifier: Apache-2.0
"""Whether the base and the steps under a plan were measured under the same load.

    load = Load()
    load.step(step_ns, planned=False); ...; load.step(step_ns, planned=True)   # as each ends
    load.difference()        # why their times are not comparable; "": nothing is known against it

A thread that is ready to run and waits for a processor, because others have it, is the slower for
it: Linux counts that time. Steps of a GPU are timed by the device, and need none of this.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from statistics import median

# The wait alone makes steps this much longer or shorter before their times are not compared; and
# not so much any more before they are again.
MOST, AGAIN = 1.25, 1.15
# Of each kind so many steps are looked at, the newest.
STEPS = 101


class Load:
    """How much of the steps of a job was waiting for a processor."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None  # thread, time and wait at the last step
        # Shares of the time.
        self._base: deque[float] = deque(maxlen=STEPS)
        self._planned: deque[float] = deque(maxlen=STEPS)
        self._most = MOST

    def step(self, step_ns: int, *, planned: bool, representative: bool = True) -> None:
        """Notes that a step has ended. Not `planned`: the base is known from it. `representative`:
        its time counts. One that follows upon
        something else than a step is left out."""
        last, self._last = self._last, _now()
        if last is None or self._last is None or not representative:
            return
        passed = self._last[1] - last[1]
        if last[0] == self._last[0] and 0 < passed <= 2 * step_ns:
            share = min(0.99, max(0.0, (self._last[2] - last[2]) / passed))
            (self._planned if planned else self._base).append(share)

    def difference(self) -> str:
        """Why the times of both kinds of steps are not comparable; "" if they are, or if nothing
        is known."""
        if not self._base or not self._planned:
            return ""
        base, planned = median(self._base), median(self._planned)
        longer = (1 - base) / (1 - planned)
        differs = not 1 / self._most <= longer <= self._most
        self._most = AGAIN if differs else MOST
        if not differs:
            return ""
        return (
            f"this process waited for a processor {base:.0%} of the time when the base was "
            f"measured, {planned:.0%} under the plan"
        ).replace("%", " %")


def _now() -> tuple[int, int, int] | None:
    """Returns this thread, the time, and how long the thread has waited for a processor; None if
    that is not known here."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            waited = int(os.read(file, 256).split()[1])
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return None
    return threading.get_ident(), time.perf_counter_ns(), waited
