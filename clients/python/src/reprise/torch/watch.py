# SPDX-License-Identifier: Apache-2.0
"""Sees what the program writes between the forward of a planned step and its backward.

    watch = Watch(run.before_write)
    watch.open()                     # the root's forward is over
    ...the program's own code: the loss, whatever it does to tensors it holds...
    loss.backward()                  # closes it

A recorded call holds its inputs, and the program may write one of them after the forward: a static
input buffer filled with the next batch, a hidden state reset in place. Plain training does not mind
where autograd has not saved that tensor, so planned training must not either: just before the write
the record gets a private copy of what it holds. The captured step need not have done it.

A dispatch mode must not be there during the backward (autograd would add gradients up out of place,
and every op would pass through Python), and it cannot leave in the middle of one. So the one call
that starts the engine is wrapped while a watch is open. Where this torch has no such call there is
no watch, and a replay that finds its input written says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from reprise.torch.ops import PLAIN_TYPES, mutated_positions

__all__ = ["Watch", "close_watches", "open_watches"]

_ENGINE = "_engine_run_backward"

_open: list[Watch] = []


def open_watches() -> int:
    """How many dispatch modes on the stack are watches: they are not the program's."""
    return len(_open)


def close_watches() -> None:
    """A step, a forward or a backward begins, or Reprise goes away."""
    for watch in reversed(_open.copy()):
        watch.close()


class Watch(TorchDispatchMode):
    """One stretch between a forward and its backward."""

    supports_higher_order_operators = True

    def __init__(self, before_write: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._before_write: Callable[[Any, Any, Any], Any] | None = before_write
        self._thread = 0
        self._engine: Any = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """A loss that is compiled stays compiled."""
        return True

    def open(self) -> None:
        """From now on."""
        engine = getattr(torch.autograd, _ENGINE, None)
        if engine is None:
            return

        def closing(*args: Any, **kwargs: Any) -> Any:
            close_watches()
            return engine(*args, **kwargs)

        self._engine = (engine, closing)
        setattr(torch.autograd, _ENGINE, closing)
        self._thread = threading.get_ident()
        self.__enter__()
        _open.append(self)

    def close(self) -> None:
        """No more. Under a mode of the program's, or on another thread, it stays where it is, does
        nothing, and goes at the next occasion."""
        self._before_write = None
        if self._engine is not None:
            engine, closing = self._engine
            if getattr(torch.autograd, _ENGINE, None) is closing:
                setattr(torch.autograd, _ENGINE, engine)
            self._engine = None
        stack = _get_current_dispatch_mode_stack()
        if threading.get_ident() == self._thread and stack and stack[-1] is self:
            self.__exit__(None, None, None)
            _open.remove(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not PLAIN_TYPES.issuperset(types):
            return NotImplemented  # a subclass takes its call apart, its inner writes come here
        if self._before_write is not None and mutated_positions(func):
            self._before_write(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))
