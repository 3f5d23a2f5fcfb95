# SPDX-License-Identifier: Apache-2.0
"""Dispatch and function modes whose ops run whatever becomes of the code that watches them.

class Tape(Mode):
    def op(self, op, types): ...; return op.run()
class Functions(FunctionMode):
    def seen(self, call, args, kwargs): ...; return call(*args, **kwargs)
"""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.torch.internals.calls import Call, around
from reprise.torch.internals.guard import fault, ours, quietly, surely

__all__ = ["FunctionMode", "Mode", "Op"]


class Op:
    """One op that a dispatch mode is shown; `run` calls it."""

    __slots__ = ("args", "begun", "done", "func", "kwargs", "out")

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.begun = False
        self.done = False
        self.out: Any = None

    def run(self) -> Any:
        """Its result; what it raises is the program's."""
        self.begun = True
        self.out = out = self.func(*self.args, **self.kwargs)
        self.done = True
        return out


class Mode(TorchDispatchMode):
    """A dispatch mode whose ops run whatever becomes of `op`."""

    def op(self, op: Op, types: Any) -> Any:
        """What this mode does with one: runs it and returns what it gave, or NotImplemented."""
        raise NotImplementedError

    gate: Any = None  # the compiled one of a tape, while it is open

    def failed(self) -> None:
        """Called after an internal error in `op`: the mode ends its work."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        op = Op(func, args, kwargs or {})
        gate = self.gate
        # Some calls come here past the gate, by a tensor of another class: what we call must not
        # come to it.
        before = 0 if gate is None else _aside(gate)
        try:
            return self.op(op, types)
        except Exception as error:
            if (op.begun and not op.done) or not ours(error):
                raise
            fault(error)
            quietly(self.failed)
            return op.out if op.done else func(*args, **(kwargs or {}))
        finally:
            if gate is not None:
                surely(gate.aside, before)
                if before & 1:
                    quietly(gate.follow)


def _aside(gate: Any) -> int:
    """Takes a gate out of the way of what is called next; how it was. Twice: once it may fail."""
    try:
        return int(gate.aside(0))
    except Exception as error:
        fault(error)
        return int(gate.aside(0))


class FunctionMode(TorchFunctionMode):
    """A mode, guarded as `Mode` is, for the functions of torch that Python calls."""

    def seen(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What this mode does with a call of `call.do`: makes it and returns what it gave."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return around(self.seen, func, args, kwargs or {})
