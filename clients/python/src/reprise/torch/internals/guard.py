# SPDX-License-Identifier: Apache-2.0
"""Keeps internal errors of Reprise away from the job: the one place where they end.

Our code runs inside the program: around a forward, for every op, for every saved tensor, before
and after an optimizer, when a tensor dies. Each of these entry points goes through one of these:

    class Tape(Mode): def op(self, call, types): ...       # a dispatch mode (modes.py)
    around(ours, engine, args, kwargs)                     # a call of the program (calls.py)
    pack, unpack = packing(pack), unpacking(unpack)        # saved-tensor hooks (saved_hooks.py)
    @quiet                                                 # a callback whose result nobody uses

An error there is reported once (`listen`), and the step goes on without a plan: an op that has not
been called is called, a result that exists is returned, a saved tensor stays as it is.

Exceptions of the program come out of a `Call` and pass through unchanged. So do exceptions that are
no `Exception` (Ctrl-C, exit), out-of-memory errors, which are handled elsewhere (recovery/), and
errors that a hook raises on behalf of autograd (`told`).

A test makes every function of the package fail, except those of these files and of stand_ins.py
(tests/python/pytorch/faults.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from reprise.base.saying import named, say

# Returns whether it has reported the error.
Listener = Callable[[Exception], bool]
F = TypeVar("F", bound=Callable[..., Any])

_listeners: list[Listener] = []
_printed: set[str] = set()


def listen(listener: Listener) -> None:
    """Calls `listener` with every internal error from now on. It returns whether it has reported
    the error."""
    _listeners.append(listener)


def no_longer(listener: Listener) -> None:
    """Removes the listener. Safe to call twice."""
    if listener in _listeners:
        _listeners.remove(listener)


def fault(error: Exception) -> None:
    """Reports an internal error to the listeners, or prints it once if none of them reports it.
    Never raises."""
    said = False
    for listener in tuple(_listeners):
        try:
            said |= listener(error)
        except Exception:
            continue
    if not said:
        text = failure(error)
        if text not in _printed:
            _printed.add(text)
            say(text)


def failure(error: BaseException) -> str:
    """Returns the log line for an internal error after which a model trains without Reprise."""
    return f"Reprise failed ({described(error)}); training continues without it"


def described(error: BaseException) -> str:
    """Describes an exception in one short line. Log lines after the first one with the same text
    say `as above` instead."""
    try:
        text = (str(error).splitlines() or [""])[0]
    except Exception:
        text = ""
    kind = type(error).__name__
    return named(f"{kind}: {text}") if text else kind


def is_oom(error: BaseException | None) -> bool:
    """Returns whether an error says that an allocation failed."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def told(error: Exception) -> Exception:
    """Marks an error that a hook raises on behalf of autograd, so that the program gets it; returns
    the error."""
    error._reprise_told_program = True  # type: ignore[attr-defined]
    return error


def ours(error: BaseException) -> bool:
    """Returns whether an exception that did not come from the program's own code is an internal
    error."""
    if not isinstance(error, Exception) or is_oom(error):
        return False
    return not getattr(error, "_reprise_told_program", False)


def caught(error: Exception) -> bool:
    """Reports an exception if it is an internal error; returns whether it is."""
    if not ours(error):
        return False
    fault(error)
    return True


# ---- Callbacks ---------------------------------------------------------------------


def quietly(do: Callable[..., Any], *args: Any) -> bool:
    """Calls a function whose result the program does not need, and reports an internal error.
    Returns whether the call succeeded."""
    try:
        do(*args)
    except Exception as error:
        fault(error)
        return False
    return True


def surely(do: Callable[..., Any], *args: Any) -> None:
    """Calls a function as `quietly` does, and once more if it fails."""
    if not quietly(do, *args):
        quietly(do, *args)


def again(do: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a function, which is called once more after an internal error in it."""
    try:
        return do(*args)
    except Exception as error:
        if not caught(error):
            raise
    return do(*args)


def telling(listeners: Iterable[Any], name: str) -> Callable[..., None]:
    """Returns a callback that calls the method `name` of each of these with its first argument; an
    internal error is reported."""

    def tell(subject: Any, *_: Any) -> None:
        for listener in tuple(listeners):
            try:
                getattr(listener, name)(subject)
            except Exception as error:
                fault(error)

    return tell


def quiet(do: F) -> F:
    """Decorates a callback: an internal error is reported, and the callback returns None."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return do(*args, **kwargs)
        except Exception as error:
            fault(error)
            return None

    return guarded  # type: ignore[return-value]
