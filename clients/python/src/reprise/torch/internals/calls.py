# SPDX-License-Identifier: Apache-2.0
"""Runs our code around calls of the program, and removes the modes and hooks that it leaves behind.

    around(ours, do, args, kwargs)      # ours(call, args, kwargs), which calls do
    call = chained(do, wrappers)        # replaces do: goes through every wrapper in the list
    call = watched(do, look)            # replaces do: look(frame, ...) sees the caller first
    call = in_turn(functions)           # calls each of them with the same arguments
    call = method_of(known, do)         # do(known(), ...): known is a weak reference
    leave(contexts)                     # exits contexts, the last one first
    level = Level(); level.restore()    # removes the modes and hooks that our code has left

If our code fails, the program's call is made exactly once, its result or its error goes to the
program, and the internal error is reported (guard.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from reprise.torch.internals.guard import fault, is_oom, ours, quietly

AUTOGRAD: Any = torch._C._autograd


class Call:
    """One call of the program that our code makes; remembers whether it began, its result and its
    error."""

    __slots__ = ("begun", "do", "done", "out", "ran_out")

    def __init__(self, do: Callable[..., Any]) -> None:
        self.do = do
        self.begun = False
        self.done = False
        self.out: Any = None
        # Type and text of an out-of-memory error. The error itself would keep the tensors alive
        # that filled the memory.
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

    def instead(self, do: Callable[..., Any]) -> Call:
        """Makes this call another function of the program's; returns the call."""
        self.do = do
        return self


def around(
    ours_: Callable[..., Any],
    do: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Returns the result of `ours_(call, args, kwargs)`, where `call` calls `do`. If our code
    fails, returns the result of `do`, which is called now if our code has not called it. Errors of
    `do` are raised."""
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
    """Returns a replacement for `do` whose calls go through every `wrapper(do, *args, **kwargs)`
    that is in the list at that time, the last one first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        inner = do
        for wrapper in tuple(wrappers):
            inner = partial(_through, wrapper, inner)
        return inner(*args, **kwargs)

    return call


def _through(wrapper: Callable[..., Any], do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls `wrapper(do, ...)`, guarded as `around` does."""
    return around(lambda call, a, k: wrapper(call, *a, **k), do, args, kwargs)


def watched(do: Callable[..., Any], look: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement for `do` that first calls `look(frame, *args)` with the caller's
    frame."""

    def call(*args: Any) -> Any:
        quietly(look, sys._getframe(1), *args)
        return do(*args)

    return call


def in_turn(functions: list[Any]) -> Callable[..., None]:
    """Returns a function that calls each of these functions in order, skipping what is not
    callable."""

    def call(*args: Any) -> None:
        for function in functions:
            if callable(function):
                function(*args)

    return call


def method_of(known: Callable[[], Any], do: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `do` with the object behind the weak reference `known` as its
    first argument."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return do(known(), *args, **kwargs)

    return call


def leave(contexts: list[Any]) -> None:
    """Exits contexts that were entered in this order and removes them from the list, also those
    that come after one that fails."""
    try:
        while contexts:
            contexts.pop().__exit__(None, None, None)
    finally:
        if contexts:
            leave(contexts)


def given(first: Any, *_: Any) -> Any:
    """Returns its first argument."""
    return first


def _of_the_program(call: Call, error: BaseException) -> BaseException:
    """Returns the error that the call of the program raised, if our code failed while handling
    it."""
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
    """Returns whether an exception came out of the program."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is Call.__call__.__code__ and frame.f_locals.get("self") is call:
            return True
        trace = trace.tb_next
    return False


class Level:
    """Remembers the modes and hooks around a call of the program; `restore` removes those that our
    code left above them."""

    __slots__ = ("_functions", "_grad", "_hooks", "_modes")

    def __init__(self) -> None:
        self._modes = torch._C._len_torch_dispatch_stack()
        self._functions = torch._C._len_torch_function_stack()
        self._hooks = top_hooks()
        self._grad = torch.is_grad_enabled()

    def restore(self) -> None:
        """Removes modes and hooks of ours that are above the remembered ones, and restores grad
        mode. Those of the program stay. Never raises."""
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
            while (found := top_hooks()) is not None:
                if found == self._hooks or not _is_ours(found[0]):
                    break
                AUTOGRAD._pop_saved_tensors_default_hooks()
            torch._C._set_grad_enabled(self._grad)
        except Exception as error:
            fault(error)


def top_hooks() -> Any:
    """Returns the innermost saved-tensor hooks; None if there are none."""
    return AUTOGRAD._top_saved_tensors_default_hooks(True)


def _is_ours(thing: Any) -> bool:
    """Returns whether a class, a function or a bound method comes from this package."""
    module = getattr(thing, "__module__", None) or type(getattr(thing, "__self__", None)).__module__
    return str(module).startswith("reprise")
