# SPDX-License-Identifier: Apache-2.0
"""Op records of a traced step: `reprise_op_begin` and `reprise_op_end` around every op.

    window = OpWindow(agent)
    with window: ...                    # forward and backward of a planned step
    with window.op("aten.mm.default"):  # something no dispatch mode sees: a replay

Only in the few steps that pages draw or that the collector asked for; costs some microseconds per
op. A dispatch mode at the bottom of the stack: it sees what runs, whoever else is above.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from reprise.agent import Agent

__all__ = ["OpRecorder", "OpWindow", "open_windows"]

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
        """It has ended."""
        self._agent.op_end(number)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        """Around something."""
        number = self.begin(name)
        try:
            yield
        finally:
            self.end(number)


class OpWindow(TorchDispatchMode):
    """Records of every op that goes through the dispatcher."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.recorder = OpRecorder(agent)

    def open(self) -> None:
        """From now on."""
        global _open
        self.__enter__()
        _open += 1

    def close(self) -> None:
        """No longer."""
        global _open
        self.__exit__(None, None, None)
        _open -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        number = self.recorder.begin(str(func))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.end(number)
