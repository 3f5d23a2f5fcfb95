# SPDX-License-Identifier: Apache-2.0
"""Faults of Reprise are never the job's: the one place where they end.

Code of ours runs inside the program: around a forward, for every op, for every saved tensor, before
and after an optimizer, when a tensor dies. Each of these ways in leads through one of these:

    class Tape(Mode): def op(self, call, types): ...       # a dispatch mode
    around(ours, engine, args, kwargs)                     # something that calls the program
    pack, unpack = packing(pack), unpacking(unpack)        # saved-tensor hooks
    @quiet                                                 # a callback whose result nobody uses

What fails there is reported once (`listen`), and the step goes on plainly: an op that was not
called yet is called, a result that is there is handed on, a saved tensor stays itself.

What is whose: the program's exceptions come out of a `Call`, and pass through unchanged. So do
those that are no `Exception` (Ctrl-C, exit), memory running out, which has its own ways
(shortage/), and what a hook says to the program in autograd's place (`told`).

Tests make every function of the package fail (tests/python/pytorch/faults.py) but those here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)

from reprise.saying import say
from reprise.torch.ground.subclass import saved_alias, version_of

__all__ = [
    "Call",
    "Level",
    "Mode",
    "Op",
    "Saved",
    "around",
    "described",
    "fault",
    "is_oom",
    "listen",
    "no_longer",
    "ours",
    "packing",
    "quiet",
    "quietly",
    "told",
    "unpacking",
]

Listener = Callable[[Exception], None]
F = TypeVar("F", bound=Callable[..., Any])

_listeners: list[Listener] = []
_unheard: set[str] = set()


# ---- Faults ------------------------------------------------------------------------


def listen(listener: Listener) -> None:
    """It hears of every fault from now on."""
    _listeners.append(listener)


def no_longer(listener: Listener) -> None:
    """It does not. Idempotent."""
    if listener in _listeners:
        _listeners.remove(listener)


def fault(error: Exception) -> None:
    """Something of ours has failed. Never raises."""
    heard = False
    for listener in tuple(_listeners):
        try:
            listener(error)
            heard = True
        except Exception:
            continue
    if not heard:
        text = f"trains without Reprise after a fault of its own ({described(error)})"
        if text not in _unheard:
            _unheard.add(text)
            say(text)


def described(error: BaseException) -> str:
    """An exception in a few words of one line."""
    try:
        text = (str(error).splitlines() or [""])[0]
    except Exception:
        text = ""
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def is_oom(error: BaseException | None) -> bool:
    """Did an allocator give up?"""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def told(error: Exception) -> Exception:
    """An error that a hook raises in autograd's place: the program is to see it."""
    error._reprise_told_program = True  # type: ignore[attr-defined]
    return error


def ours(error: BaseException) -> bool:
    """Is an exception that came out of no call of the program a fault of ours?"""
    if not isinstance(error, Exception) or is_oom(error):
        return False
    return not getattr(error, "_reprise_told_program", False)


# ---- Callbacks ---------------------------------------------------------------------


def quietly(do: Callable[..., Any], *args: Any) -> bool:
    """Calls something of ours that the program does not wait for. Did it work?"""
    try:
        do(*args)
    except Exception as error:
        fault(error)
        return False
    return True


def quiet(do: F) -> F:
    """The same as a decorator: a fault is reported, and nothing returned."""

    @wraps(do)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return do(*args, **kwargs)
        except Exception as error:
            fault(error)
            return None

    return guarded  # type: ignore[return-value]


# ---- Around the program ------------------------------------------------------------


class Call:
    """One call of the program's, in the hands of code of ours."""

    __slots__ = ("begun", "do", "done", "out", "ran_out")

    def __init__(self, do: Callable[..., Any]) -> None:
        self.do = do
        self.begun = False
        self.done = False
        self.out: Any = None
        # The kind and text of an error that is out of memory. The error itself would keep what
        # filled it.
        self.ran_out: tuple[type[BaseException], str] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.begun, self.done, self.out = True, False, None
        try:
            out = self.do(*args, **kwargs)
        except Exception as error:
            if is_oom(error):
                self.ran_out = (type(error), str(error))
            raise
        self.done, self.out = True, out
        return out


def around(
    ours_: Callable[..., Any],
    do: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`ours_(call, args, kwargs)`, which calls `do`, and what it returns. Where it fails `do` is
    called all the same, once; where that had failed before, its error is the program's."""
    call = Call(do)
    try:
        return ours_(call, args, kwargs)
    except Exception as error:
        if not ours(error) or _passed(call, error):
            raise
        fault(error)
        if call.begun and not call.done:
            raise _of_the_program(call, error) from None
        out, done = call.out, call.done
    finally:
        call.out = None
    return out if done else do(*args, **kwargs)


def _of_the_program(call: Call, error: BaseException) -> BaseException:
    """What the call raised, before we failed over it."""
    before = error.__context__
    while before is not None:
        if _passed(call, before):
            return before
        before = before.__context__
    if call.ran_out is not None:
        kind, text = call.ran_out
        return kind(text)
    return error


def _passed(call: Call, error: BaseException) -> bool:
    """Did it come out of the program?"""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is Call.__call__.__code__ and frame.f_locals.get("self") is call:
            return True
        trace = trace.tb_next
    return False


class Level:
    """The modes and hooks that lie over a call of the program; `restore` takes off what we have
    left above them."""

    __slots__ = ("_functions", "_grad", "_hooks", "_modes")

    def __init__(self) -> None:
        self._modes = torch._C._len_torch_dispatch_stack()
        self._functions = torch._C._len_torch_function_stack()
        self._hooks = _top_hooks()
        self._grad = torch.is_grad_enabled()

    def restore(self) -> None:
        """Those of the program stay. Never raises."""
        try:
            while torch._C._len_torch_dispatch_stack() > self._modes:
                top = _get_current_dispatch_mode_stack()[-1]
                if not _is_ours(type(top)):
                    break
                _pop_mode()
            while torch._C._len_torch_function_stack() > self._functions:
                top = torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1)
                if not _is_ours(type(top)):
                    break
                torch._C._pop_torch_function_stack()
            autograd: Any = torch._C._autograd
            while (found := _top_hooks()) is not None:
                if found == self._hooks or not _is_ours(found[0]):
                    break
                autograd._pop_saved_tensors_default_hooks()
            torch._C._set_grad_enabled(self._grad)
        except Exception as error:
            fault(error)


def _top_hooks() -> Any:
    autograd: Any = torch._C._autograd
    return autograd._top_saved_tensors_default_hooks(True)


def _is_ours(thing: Any) -> bool:
    module = getattr(thing, "__module__", None) or type(getattr(thing, "__self__", None)).__module__
    return str(module).startswith("reprise")


# ---- Ops ---------------------------------------------------------------------------


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

    def failed(self) -> None:
        """After a fault in `op`: what the mode is for is over."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        op = Op(func, args, kwargs or {})
        try:
            return self.op(op, types)
        except Exception as error:
            if (op.begun and not op.done) or not ours(error):
                raise
            fault(error)
        quietly(self.failed)
        return op.out if op.done else func(*args, **(kwargs or {}))


# ---- Saved tensors -----------------------------------------------------------------


class Saved:
    """What autograd keeps of a tensor where our hook has failed: the tensor, by an alias, which
    keeps no graph alive."""

    __slots__ = ("alias", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.alias = saved_alias(tensor)
        self.version = version_of(self.alias)

    def tensor(self) -> Tensor:
        """As autograd would hand it out."""
        if version_of(self.alias) != self.version:
            raise told(
                RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: [{self.alias.type()} {list(self.alias.shape)}] is at "
                    f"version {version_of(self.alias)}; expected version {self.version} instead."
                )
            )
        return self.alias


def packing(pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """A pack hook of ours; where it fails the tensor is kept."""

    def guarded(tensor: Tensor) -> Any:
        try:
            return pack(tensor)
        except Exception as error:
            if not ours(error):
                raise
            fault(error)
        return Saved(tensor)

    return guarded


def unpacking(unpack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """An unpack hook of ours. Where it fails, what was packed says itself how it is had all the
    same (`plainly`)."""

    def guarded(packed: Any) -> Tensor:
        if type(packed) is Saved:
            return packed.tensor()
        try:
            return unpack(packed)
        except Exception as error:
            if not ours(error):
                raise
            fault(error)
            plainly = getattr(packed, "plainly", None)
            if plainly is None:
                raise
        found: Tensor = plainly()
        return found

    return guarded
