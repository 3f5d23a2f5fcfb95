# SPDX-License-Identifier: Apache-2.0
"""Op records of a traced step: `reprise_op_begin` and `reprise_op_end` around every op.

    window = OpWindow(agent)
    with window: ...                    # forward and backward of a planned step
    with window.op("aten.mm.default"):  # something no dispatch mode sees: a replay

Only in the few steps that pages draw or that the collector asked for; costs some microseconds per
op. A dispatch mode at the bottom of the stack: it sees what runs, whoever else is above. Autograd's
threads run under the modes of the thread that called backward, so an op is marked on the thread
that launches its kernels.

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
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from reprise import abi
from reprise.agent import Agent
from reprise.torch.internals.modes import Mode, Op
from reprise.torch.internals.open_hooks import close

__all__ = ["KernelWindow", "OpRecorder", "OpWindow", "open_windows", "runs_kernels"]

# How long the collector may take to read what a traced step has reported.
READ_S = 2.0

_numbers = itertools.count(1)
_open = 0


def open_windows() -> int:
    """How many dispatch modes on the stack are windows: they are not the program's."""
    return _open


class OpRecorder:
    """Sends the two records of an op."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._names: dict[str, int] = {}

    def begin(self, name: str) -> int:
        """An op starts; pass the number to `end`."""
        number = next(_numbers)
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = self._agent.intern(name)
        self._agent.op_begin(number, known)
        return number

    def end(self, number: int) -> None:
        """Records the end of an op."""
        self._agent.op_end(number)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        """Records what runs inside as one op of this name."""
        number = self.begin(name)
        try:
            yield
        finally:
            self.end(number)


class OpWindow(Mode):
    """Records of every op that goes through the dispatcher."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells torch that compiled code may run under this mode."""
        return True

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.recorder = OpRecorder(agent)
        self.thread = 0
        self._over = False

    def open(self) -> None:
        """Records every op of this thread from now on."""
        global _open
        self.thread = threading.get_ident()
        self.__enter__()
        _open += 1

    def close(self) -> None:
        """Stops recording ops."""
        self._over = True
        close(self)

    def on_top(self) -> bool:
        """No mode was put on after it."""
        stack = _get_current_dispatch_mode_stack()
        return bool(stack) and stack[-1] is self

    def take_off(self) -> None:
        """Removes the dispatch mode."""
        global _open
        self.__exit__(None, None, None)
        _open -= 1

    def op(self, op: Op, types: Any) -> Any:
        if self._over:
            return op.run()
        number = self.recorder.begin(str(op.func))
        try:
            return op.run()
        finally:
            self.recorder.end(number)

    def failed(self) -> None:
        self._over = True


def runs_kernels(device: torch.device) -> bool:
    """What ops cost there is the time of their kernels, and CUPTI can tell it."""
    return device.type == "cuda"


class KernelWindow:
    """The agent's window around one step, where a device runs kernels. Nothing elsewhere: the
    host's clock is right there."""

    def __init__(self, agent: Agent, device: torch.device) -> None:
        self._agent = agent
        self._device = device
        self._open = False
        self.traced = runs_kernels(device)  # or would be, were CUPTI to be had

    def open(self) -> None:
        """From now on. A window of the collector's that traces kernels stays as it is."""
        if self.traced and not self._agent.window_kinds() & abi.KIND_KERNELS:
            self._agent.window_begin()
            self._open = True

    def close(self) -> None:
        """Waits until all kernels have run and what was seen of them is read. Idempotent."""
        if not self.traced:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if self._open:
            self._open = False
            self._agent.window_end()
        self._agent.flush(READ_S)

    def drop(self) -> None:
        """Closes the window of a step that was given up."""
        if self._open:
            self._open = False
            self._agent.window_end()
