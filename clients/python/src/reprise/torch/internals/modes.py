# SPDX-License-Identifier: Apache-2.0
"""Dispatch and function modes whose ops run even if the code that watches them fails.

class Tape(Mode):
    def op(self, op, types): ...; return op.run()
class Functions(FunctionMode):
    def seen(self, call, args, kwargs): ...; return call(*args, **kwargs)
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from reprise.torch.internals.calls import Call, around
from reprise.torch.internals.guard import fault, ours, quietly, surely
from reprise.torch.internals.ops import DEVICE

_COUNTING = torch._C.DispatchKey.ADInplaceOrView


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
        """Calls the op and returns its result. Its exceptions belong to the program. Many ops that
        write a list of tensors write one after another, by calls that are not counted below a mode:
        a graph that waits for one of the tensors would not notice the write."""
        many = _writes_many(self.func)
        self.begun = True
        if many:
            self.out = out = counted(self.func, *self.args, **self.kwargs)
        else:
            self.out = out = self.func(*self.args, **self.kwargs)
        self.done = True
        return out


def counted(do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function so that version counters are as above a dispatch mode, where they would not
    be below it: a write raises them, and an alias shares them."""
    exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
    before = torch._C._dispatch_tls_is_dispatch_key_excluded(_COUNTING)
    exclude(_COUNTING, False)
    try:
        return do(*args, **kwargs)
    finally:
        exclude(_COUNTING, before)


@cache
def _writes_many(func: Any) -> bool:
    """Returns whether an op writes a list of tensors: `_foreach_add_`, `split_copy.Tensor_out`."""
    schema = getattr(func, "_schema", None)  # operators of higher order have none
    return schema is not None and any(
        argument.alias_info is not None
        and argument.alias_info.is_write
        and isinstance(argument.type, torch.ListType)
        for argument in schema.arguments
    )


class Mode(TorchDispatchMode):
    """A dispatch mode whose ops run even if `op` fails."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells torch that compiled code may run under this mode: a compiled loss or optimizer
        stays compiled."""
        return True

    only_looks = False  # a forward under it may be planned: it sees ops, and changes none

    thread = 0  # that has set it, if it stays set between calls of the program

    def on_top(self) -> bool:
        """Returns whether this is the innermost mode, which can be taken off."""
        return _get_current_dispatch_mode_stack()[-1:] == [self]

    def take_off(self) -> None:
        """Takes it off. May be called only if `on_top` is true."""
        self.__exit__(None, None, None)

    def op(self, op: Op, types: Any) -> Any:
        """Handles an op: calls `op.run()` and returns its result, or returns NotImplemented."""
        raise NotImplementedError

    gate: Any = None  # the native one of a tape, while it is open

    def close_gate(self) -> None:
        """Closes the gate, if it is open."""
        gate, self.gate = self.gate, None
        if gate is not None:
            surely(gate.close)

    def failed(self) -> None:
        """Called after an internal error in `op`: the mode ends its work."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is DEVICE:
            return func(*args)
        op = Op(func, args, kwargs or {})
        gate = self.gate
        # A call with a tensor subclass comes here without passing the gate. The ops that we call
        # must not pass it either.
        before = 0 if gate is None else _aside(gate)
        try:
            return self.op(op, types)
        except Exception as error:
            if (op.begun and not op.done) or not ours(error):
                raise
            fault(error)
            quietly(self.failed)
            return op.out if op.done else op.run()
        finally:
            if gate is not None:
                surely(gate.aside, before)
                if before & 1:
                    quietly(gate.follow)


def _aside(gate: Any) -> int:
    """Switches a gate off for the ops that are called next; returns its former state. The first
    attempt may fail, the second is not guarded."""
    try:
        return int(gate.aside(0))
    except Exception as error:
        fault(error)
        return int(gate.aside(0))


# An attribute of a tensor that is read or set.
_Access = types.MethodWrapperType


class FunctionMode(TorchFunctionMode):
    """A mode for the torch functions that Python calls; it is guarded as `Mode` is. It is not shown
    attributes that are read or set, and functions that only look at a tensor: FSDP makes hundreds
    of such calls per block and backward."""

    _looks: ClassVar[frozenset[Any]] = frozenset(
        {
            Tensor.as_strided,
            Tensor.dim,
            Tensor.is_inference,
            Tensor.numel,
            Tensor.size,
            Tensor.stride,
            Tensor.untyped_storage,
            Tensor.view,
            torch._C._set_grad_enabled,
        }
    )
    _plain: ClassVar[frozenset[type]] = frozenset(map(type, _looks))

    def seen(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handles a call: calls `call(*args, **kwargs)` and returns its result."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = type(func)
        if kind is _Access or (kind in self._plain and func in self._looks):
            return func(*args, **kwargs) if kwargs else func(*args)
        return around(self.seen, func, args, kwargs or {})
