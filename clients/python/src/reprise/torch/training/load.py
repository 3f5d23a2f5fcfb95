# SPDX-License-Identifier: Apache-2.0
"""Whether the base and the steps under a plan were measured under the same load.

    load = Load()
    load.step(step_ns, planned=False); ...; load.step(step_ns, planned=True)   # as each ends
    load.same_ops = 0.9      # the ops of a forward under the plan, by what they took in the base
    load.difference()        # why their times are not comparable; "": nothing is known against it

A thread that is ready to run and waits for a processor, because others have it, is the slower for
it: Linux counts that time. What Linux does not see, such as a host that gives a virtual machine
less, or a processor that heats up, makes the same ops slower. Steps of a GPU are timed by the
device, and need none of this.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from statistics import median, quantiles

from reprise.base.units import format_duration, format_percent

# Of each kind so many steps are looked at, the newest; from MANY on, each time as many have ended.
STEPS, MANY = 101, 16


class Load:
    """How much of the steps of a job was waiting for a processor, how evenly they ran, and how
    quick the machine was."""

    def __init__(self) -> None:
        self.same_ops = 1.0  # what they take under the plan, by what they took in the base
        self._read = _Waits()
        self._last: tuple[int, int, int] | None = None  # thread, time and wait at the last step
        # Shares of the time.
        self._base: deque[float] = deque(maxlen=STEPS)
        self._planned: deque[float] = deque(maxlen=STEPS)
        self._times_ns: deque[int] = deque(maxlen=STEPS)  # under the plan
        self._count = 0
        self._why = ""
        self._waits, self._varies = _Limit(1.25, 1.15), _Limit(1.25, 1.15)
        self._ops = _Limit(1.15, 1.1)

    def step(self, step_ns: int, *, planned: bool, representative: bool = True) -> None:
        """Notes that a step has ended. Not `planned`: the base is known from it. `representative`:
        its time counts. How long one waited that follows upon something else than a step is left
        out."""
        last, self._last = self._last, self._read.now()
        if not representative:
            return
        if planned:
            self._times_ns.append(step_ns)
            self._count += 1
        if last is None or self._last is None:
            return
        passed = self._last[1] - last[1]
        if last[0] == self._last[0] and 0 < passed <= 2 * step_ns:
            share = min(0.99, max(0.0, (self._last[2] - last[2]) / passed))
            (self._planned if planned else self._base).append(share)

    def difference(self) -> str:
        """Why the times of both kinds of steps are not comparable; "" if they are, or if nothing
        is known."""
        if self._count < MANY or self._count % MANY == 0:
            found = filter(None, (self._waited(), self._ran_unevenly(), self._took()))
            self._why = next(found, "")
        return self._why

    def _waited(self) -> str:
        if not self._base or not self._planned:
            return ""
        base, planned = median(self._base), median(self._planned)
        if not self._waits.is_passed((1 - base) / (1 - planned)):
            return ""
        return (
            f"this process waited for a processor {base:.0%} of the time when the base was "
            f"measured, {planned:.0%} under the plan"
        ).replace("%", " %")

    def _ran_unevenly(self) -> str:
        if len(self._times_ns) < 5:
            return ""
        short, _, long = map(int, quantiles(self._times_ns, n=4))
        if not self._varies.is_passed(long / max(1, short)):
            return ""
        return (
            f"of the steps under the plan a quarter took less than {format_duration(short)}, and a "
            f"quarter more than {format_duration(long)}"
        )

    def _took(self) -> str:
        if not self._ops.is_passed(self.same_ops):
            return ""
        off = format_percent(abs(self.same_ops - 1))
        more = "more" if self.same_ops > 1 else "less"
        return f"the same ops take {off} {more} time than when the base was measured"


class _Limit:
    """A factor, either way, from which times are not compared, and the smaller one below which they
    are again."""

    def __init__(self, most: float, again: float) -> None:
        self._most, self._again = most, again
        self._now = most

    def is_passed(self, factor: float) -> bool:
        passed = not 1 / self._now <= factor <= self._now
        self._now = self._again if passed else self._most
        return passed


class _Waits:
    """Reads how long a thread has waited for a processor. The file of the thread that asks first
    stays open: to open it takes longer than all else that is done about the time of a step."""

    def __init__(self) -> None:
        self._thread = self._file = 0

    def now(self) -> tuple[int, int, int] | None:
        """Returns this thread, the time, and how long the thread has waited so far; None if that is
        not known here."""
        here = threading.get_ident()
        try:
            file = self._file if here == self._thread else self._opened(here)
            try:
                waited = int(os.pread(file, 256, 0).split()[1])
            finally:
                if file != self._file:
                    os.close(file)
        except (OSError, ValueError, IndexError):
            self._thread = self._file = -1  # the program may have closed it
            return None
        return here, time.perf_counter_ns(), waited

    def _opened(self, thread: int) -> int:
        """Opens the file of this thread; keeps the first one."""
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if not self._thread:
            self._thread, self._file = thread, file
            weakref.finalize(self, _close, file, _identity(file)).atexit = False
        return file


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _close(file: int, identity: tuple[int, int]) -> None:
    """Closes a file, unless the program has closed it and opened another one under its number."""
    with suppress(OSError):
        if _identity(file) == identity:
            os.close(file)
