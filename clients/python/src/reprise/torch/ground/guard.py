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

import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)

from reprise.saying import say
from reprise.torch.ground.subclass import saved_alias, version_of

__all__ = [
    "Call",
    "FunctionMode",
    "Level",
    "Lifted",
    "Method",
    "Mode",
    "Op",
    "Reduce",
    "Saved",
    "around",
    "caught",
    "chained",
    "described",
    "fault",
    "is_oom",
    "listen",
    "no_longer",
    "ours",
    "packing",
    "quiet",
    "quietly",
    "surely",
    "told",
    "unpacking",
    "watched",
]

# Returns whether it has said so.
Listener = Callable[[Exception], bool]
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
    said = False
    for listener in tuple(_listeners):
        try:
            said |= listener(error)
        except Exception:
            continue
    if not said:
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


def caught(error: Exception) -> bool:
    """Of code that is not Python. True: it was ours, and is reported."""
    if not ours(error):
        return False
    fault(error)
    return True


# ---- Callbacks ---------------------------------------------------------------------


def quietly(do: Callable[..., Any], *args: Any) -> bool:
    """Calls something of ours that the program does not wait for. Did it work?"""
    try:
        do(*args)
    except Exception as error:
        fault(error)
        return False
    return True


def surely(do: Callable[..., Any], *args: Any) -> None:
    """The same for what must not be left undone: tried once more where it fails."""
    if not quietly(do, *args):
        quietly(do, *args)


def quiet(do: F) -> F:
    """The same as a decorator: a fault is reported, and nothing returned."""

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


def chained(do: Callable[..., Any], wrappers: list[Callable[..., Any]]) -> Callable[..., Any]:
    """Stands in for `do`: its calls go through each of those that are in the list then,
    `wrapper(do, *args, **kwargs)`, the last one first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        inner = do
        for wrapper in tuple(wrappers):
            inner = partial(_through, wrapper, inner)
        return inner(*args, **kwargs)

    return call


def _through(wrapper: Callable[..., Any], do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return around(lambda call, a, k: wrapper(call, *a, **k), do, args, kwargs)


def watched(do: Callable[..., Any], look: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for `do`: before it is called, `look(frame, *args)` sees who calls it."""

    def call(*args: Any) -> Any:
        quietly(look, sys._getframe(1), *args)
        return do(*args)

    return call


class Method:
    """Stands in `vars(model)["forward"]` and looks like the method whose place it takes; its calls
    go to `around_(plain, args, kwargs)`. Holds the module weakly, as a method would not: a module
    must not be what keeps itself alive."""

    def __init__(self, model: Any, own: Any, around_: Callable[..., Any]) -> None:
        self._model = weakref.ref(model)
        self._own = own  # what the program had put there
        self._around = around_

    @property
    def __wrapped__(self) -> Any:
        if self._own is not None:
            return self._own
        model: Any = self._model()
        return MethodType(type(model).forward, model)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The forward as it was."""
        return self.__wrapped__(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)  # the compiler sees the model as it was
        return around(self._around, self.plain, args, kwargs)

    # A method for who asks: inspect, torch.jit, torch.export, pickle.
    __class__: Any = property(lambda self: type(self.__wrapped__))

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.__wrapped__.__doc__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model: Any = self._model()
        if self._own is not None:
            return copy.deepcopy(self._own, memo)
        return MethodType(type(model).forward, memo.get(id(model), model))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._own is not None:
            return self._own.__reduce_ex__(protocol)
        return getattr, (self._model(), "forward")


class Reduce:
    """Stands in `vars(model)["__reduce_ex__"]`: how the module is copied and pickled, its state
    `without` ours."""

    def __init__(self, model: Any, own: Any, without: Callable[[Any], Any]) -> None:
        self._model = weakref.ref(model)
        self._own = own
        self._without = without

    def __call__(self, protocol: Any) -> Any:
        model: Any = self._model()
        kind: Any = type(model)
        reduced = (self._own or partial(kind.__reduce_ex__, model))(protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced
        made, arguments, state, *rest = reduced
        if isinstance(state, dict):
            state = self._without(state)
        elif isinstance(state, tuple) and state and isinstance(state[0], dict):  # with slots
            state = (self._without(state[0]), *state[1:])
        return (made, arguments, state, *rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model: Any = self._model()
        return MethodType(type(model).__reduce_ex__, memo.get(id(model), model))


class Lifted:
    """Stands in for a context manager of torch's, inside which something of ours is taken off:
    `off(taken)` adds to a list what it takes, `on(taken)` puts that back."""

    def __init__(
        self, plain: Any, off: Callable[[list[Any]], None], on: Callable[[list[Any]], None]
    ) -> None:
        self._plain, self._off, self._on = plain, off, on

    @contextmanager
    def __call__(self, *args: Any) -> Iterator[None]:
        taken: list[Any] = []
        surely(self._off, taken)
        try:
            with self._plain(*args):
                yield
        finally:
            surely(self._on, taken)


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

    gate: Any = None  # the compiled one of a tape, while it is open

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
        gate = self.gate
        # Some calls come here past the gate, by a tensor of another class: what we call must not
        # come to it.
        before = 0 if gate is None else gate.aside(0)
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
                gate.aside(before)
                if before & 1:
                    gate.follow()


class FunctionMode(TorchFunctionMode):
    """The same for what Python calls of torch."""

    def seen(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What this mode does with a call of `call.do`: makes it and returns what it gave."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return around(self.seen, func, args, kwargs or {})


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
        if isinstance(packed, Tensor):
            return packed
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
