# SPDX-License-Identifier: Apache-2.0
"""Faults of Reprise are never the job's: the one place where they end.

Code of ours runs inside the program: around a forward, for every op, for every saved tensor, before
and after an optimizer, when a tensor dies. Each of these ways in leads through one of these:

    class Tape(Mode): def op(self, call, types): ...       # a dispatch mode (modes.py)
    around(ours, engine, args, kwargs)                     # what calls the program (around.py)
    pack, unpack = packing(pack), unpacking(unpack)        # saved-tensor hooks (saved_hooks.py)
    @quiet                                                 # a callback whose result nobody uses

What fails there is reported once (`listen`), and the step goes on plainly: an op that was not
called yet is called, a result that is there is handed on, a saved tensor stays itself.

What is whose: the program's exceptions come out of a `Call`, and pass through unchanged. So do
those that are no `Exception` (Ctrl-C, exit), memory running out, which has its own ways
(recovery/), and what a hook says to the program in autograd's place (`told`).

Tests make every function of the package fail but those of these files and of stand_ins.py
(tests/python/pytorch/faults.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from reprise.saying import named, say

__all__ = [
    "caught",
    "described",
    "failure",
    "fault",
    "is_oom",
    "listen",
    "no_longer",
    "ours",
    "quiet",
    "quietly",
    "surely",
    "told",
]

# Returns whether it has said so.
Listener = Callable[[Exception], bool]
F = TypeVar("F", bound=Callable[..., Any])

_listeners: list[Listener] = []
_unheard: set[str] = set()


def listen(listener: Listener) -> None:
    """Calls `listener` with every fault from now on. It returns whether it has said so."""
    _listeners.append(listener)


def no_longer(listener: Listener) -> None:
    """Ends what `listen` began for this listener. Idempotent."""
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
        text = failure(error)
        if text not in _unheard:
            _unheard.add(text)
            say(text)


def failure(error: BaseException) -> str:
    """The line of the log about a fault that Reprise is taken off a model for."""
    return f"Reprise failed ({described(error)}); training continues without it"


def described(error: BaseException) -> str:
    """An exception in a few words of one line. Of the lines of the log that carry them, the first
    one does; later ones say `as above`."""
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
    """An error that a hook raises in autograd's place: the program is to see it."""
    error._reprise_told_program = True  # type: ignore[attr-defined]
    return error


def ours(error: BaseException) -> bool:
    """Returns whether an exception that no call of the program raised is an internal error."""
    if not isinstance(error, Exception) or is_oom(error):
        return False
    return not getattr(error, "_reprise_told_program", False)


def caught(error: Exception) -> bool:
    """Reports an exception of native code if it is an internal error; returns whether it is."""
    if not ours(error):
        return False
    fault(error)
    return True


# ---- Callbacks ---------------------------------------------------------------------


def quietly(do: Callable[..., Any], *args: Any) -> bool:
    """Calls something that the program does not wait for. Returns whether it succeeded."""
    try:
        do(*args)
    except Exception as error:
        fault(error)
        return False
    return True


def surely(do: Callable[..., Any], *args: Any) -> None:
    """Calls something as `quietly` does, and calls it again if it fails."""
    if not quietly(do, *args):
        quietly(do, *args)


def quiet(do: F) -> F:
    """Decorates a callback: an internal error is reported, and None is returned."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return do(*args, **kwargs)
        except Exception as error:
            fault(error)
            return None

    return guarded  # type: ignore[return-value]
