# SPDX-License-Identifier: Apache-2.0
"""Measures how long steps take, without waiting for a GPU.

    times = StepTimes(device)
    times.begin(); ...a step...; times.end()
    times.tell(then)           # calls then(step_ns, work_ns), now or later
    times.leave_out(ns)        # subtracts time that was not the step's
    times.read()               # between steps: reports the steps that the device has finished
    times.read(wait=True)      # reports all of them

On a CPU a step is over when its last call has returned, and `tell` calls `then` at once. A GPU
works behind the host, and waiting for it at the end of every step would remove the overlap of a
step with the next. So two events are recorded on the stream, and the time between them is read when
the device has passed both: a later `read` calls `then`, in the order of the steps.

`work_ns` is the CPU time of the thread if no other thread computes (`work_clock`); otherwise it
equals `step_ns`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from reprise.torch.meter.state import work_clock

# The most steps whose time is not read yet. Waiting for the oldest costs nothing: a device cannot
# queue this much work, so the host has already waited for it.
MOST_UNREAD = 64

Then = Callable[[int, int], None]


class StepTimes:
    """Measures the steps of one session."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = torch.get_num_threads()
        self._clock = work_clock(device)
        self._begin_ns = self._begin_work = 0
        self._step_ns = self._work_ns = 0
        self._begin_event: Any = None
        self._end_event: Any = None
        self._left_out = 0
        self._unread: deque[tuple[Any, Any, int, Then]] = deque()

    def begin(self) -> None:
        """Starts the clock of a step."""
        self._left_out = 0
        if self._device.type == "cuda":
            self._begin_event = self._event()
            return
        if self._threads != torch.get_num_threads():
            self._threads = torch.get_num_threads()
            self._clock = work_clock(self._device)
        self._begin_ns, self._begin_work = time.perf_counter_ns(), self._clock()

    def leave_out(self, ns: int) -> None:
        """Subtracts time that was not part of the step."""
        self._left_out += ns

    def end(self) -> None:
        """Stops the clock of the step."""
        if self._device.type == "cuda":
            self._end_event = self._event()
        else:
            self._step_ns = time.perf_counter_ns() - self._begin_ns - self._left_out
            self._work_ns = self._clock() - self._begin_work - self._left_out

    def tell(self, then: Then) -> None:
        """Calls `then` with the times of the step that has ended, now or in a later `read`."""
        if self._device.type != "cuda":
            then(self._step_ns, self._work_ns)
            return
        self._unread.append((self._begin_event, self._end_event, self._left_out, then))
        if len(self._unread) > MOST_UNREAD:
            self._unread[0][1].synchronize()

    def read(self, wait: bool = False) -> None:
        """Calls `then` for every step whose times are known by now. With `wait`, waits for all
        steps that have ended. If the device has failed, their times are dropped."""
        while self._unread:
            begin, end, left_out, then = self._unread[0]
            try:
                if wait:
                    begin.synchronize()
                    end.synchronize()
                elif not (begin.query() and end.query()):
                    return
                passed_ms = begin.elapsed_time(end)
            except RuntimeError:  # the program's own calls raise the same error
                self._unread.clear()
                return
            self._unread.popleft()
            step_ns = max(0, int(passed_ms * 1e6) - left_out)
            then(step_ns, step_ns)

    def _event(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
