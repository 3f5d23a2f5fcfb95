# SPDX-License-Identifier: Apache-2.0
"""Op records of a traced step: `reprise_op_begin` and `reprise_op_end` around every op.

    window = OpWindow(agent)
    window.open(); ...forward and backward...; window.close()
    with OpRecorder(agent).op("reprise::recompute"): ...    # work that no dispatch mode sees

Used only in the few steps that are drawn on a page or that the collector asks for; costs some
microseconds per op. The window is the lowest dispatch mode on the stack, so it sees what really
runs, whichever modes are above it. Autograd's threads run under the modes of the thread that called
backward, so every op is recorded on the thread that launches its kernels.

    kernels = KernelWindow(agent, device)
    kernels.open(); ...one step...; kernels.close()
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reprise.agent import abi
from reprise.agent.agent import Agent
from reprise.torch.internals.modes import Mode, Op
from reprise.torch.internals.open_hooks import close

# How long the collector may take to read what a traced step has reported.
READ_S = 2.0

_numbers = itertools.count(1)


class OpRecorder:
    """Sends the begin and end records of ops."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._names: dict[str, int] = {}

    def begin(self, name: str) -> int:
        """Records the begin of an op; returns the number that `end` takes."""
        number = next(_numbers)
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = self._agent.intern(name)
        self._agent.op_begin(number, known)
        return number

    def end(self, number: int) -> None:
        """Records the end of the op that `begin` gave this number."""
        self._agent.op_end(number)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        """Records whatever runs inside as one op with this name."""
        number = self.begin(name)
        try:
            yield
        finally:
            self.end(number)


class OpWindow(Mode):
    """Records every op that goes through the dispatcher."""

    supports_higher_order_operators = True
    only_looks = True

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.recorder = OpRecorder(agent)
        self._over = False

    def open(self) -> None:
        """Records every op of this thread from now on."""
        self.thread = threading.get_ident()
        self.__enter__()

    def close(self) -> None:
        """Stops recording ops."""
        self._over = True
        close(self)

    def op(self, op: Op, types: Any) -> Any:
        if self._over:
            return op.run()
        number = self.recorder.begin(str(op.func))
        try:
            return op.run()
        finally:
            self.recorder.end(number)

    def failed(self) -> None:
        """Stops recording, after an internal error."""
        self._over = True


def runs_kernels(device: torch.device) -> bool:
    """Returns whether op times on this device are kernel times, which CUPTI can measure."""
    return device.type == "cuda"


class KernelWindow:
    """Opens the agent's window around one step on a device that runs kernels. On other devices it
    does nothing, because the host's clock is accurate there."""

    def __init__(self, agent: Agent, device: torch.device) -> None:
        self._agent = agent
        self._device = device
        self._open = False
        self.traced = runs_kernels(device)  # true even if CUPTI is missing

    def open(self) -> None:
        """Begins a window, unless the collector has one open that already traces kernels."""
        if self.traced and not self._agent.window_kinds() & abi.KIND_KERNELS:
            self._agent.window_begin()
            self._open = True

    def close(self) -> None:
        """Waits until all kernels have run and the collector has read their records. Safe to call
        twice."""
        if not self.traced:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if self._open:
            self._open = False
            self._agent.window_end()
        self._agent.flush(READ_S)

    def drop(self) -> None:
        """Closes the window of a step that was abandoned, without waiting for its records."""
        if self._open:
            self._open = False
            self._agent.window_end()
