# SPDX-License-Identifier: Apache-2.0
"""Detects parts of a model that torch.compile has compiled on their own.

    compiled_parts(model)           # ["blocks.0", ...]: modules that are compiled one by one
    with watch(called): ...         # called(name) as soon as compiled code starts on this thread

Neither a capture nor the tape can look into such code. Under a dispatch mode that does not declare
that it ignores compiler internals, Dynamo skips it: the block then runs eagerly, with other
numbers, or raises if it was compiled with `fullgraph=True`. So a model with such parts gets no
plan.

A compiled function leaves no trace in the modules that call it, so calls are watched, too. All of
them begin with `set_eval_frame(None)` in `compile_wrapper` of `torch._dynamo.eval_frame`, before
any state of the dispatcher is saved: `called` may still remove modes and hooks. If torch has no
such name, calls are not watched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn

from reprise.torch.internals.calls import watched
from reprise.torch.internals.contracts import SET_EVAL_FRAME

Called = Callable[[str], None]

_MODULE, _, _SETS = SET_EVAL_FRAME.name.rpartition(".")
_ENTRY = "compile_wrapper"

_lock = threading.Lock()
_watching = 0
_plain: Any = None


class _OfThread(threading.local):
    """The callbacks of the contexts that are open on this thread."""

    def __init__(self) -> None:
        self.called: list[Called] = []


_here = _OfThread()


def is_compiled(function: Any) -> bool:
    """Returns whether a callable comes from torch.compile, not from `torch.compiler.disable`."""
    return hasattr(function, "_torchdynamo_orig_callable") and not getattr(
        function, "_torchdynamo_disable", False
    )


def compiled_parts(model: nn.Module) -> list[str]:
    """Returns the names of the modules in a model that are compiled on their own; "" if the forward
    of the model itself is."""
    found: list[str] = []
    for name, module in model.named_modules():
        if found and found[-1] and name.startswith(f"{found[-1]}."):
            continue  # inside a compiled part
        own = module.__dict__
        wrapped = "_orig_mod" in own.get("_modules", {}) and "dynamo_ctx" in own
        calls = [own.get("forward"), getattr(type(module), "forward", None)]
        if name:
            calls.append(own.get("_compiled_call_impl"))
        if (name and wrapped) or any(map(is_compiled, calls)):
            found.append(name)
    return found


def compiled_in_pieces(parts: list[str]) -> str:
    """Returns the message that a model with such parts is not planned, why, and what to do."""
    return (
        f"training without a plan: parts of this model are compiled one by one ({_listed(parts)}), "
        "and a plan cannot look into them; compile the whole model by torch.compile, then call "
        "reprise.auto"
    )


def _listed(parts: list[str]) -> str:
    """Returns the first two names and how many more there are, for a sentence."""
    shown = ", ".join(part or "its forward" for part in parts[:2])
    return f"{shown} and {len(parts) - 2} more" if len(parts) > 2 else shown


class watch:
    """Calls `called(name)` when compiled code starts inside this context on this thread. Costs a
    microsecond, and nothing per op."""

    def __init__(self, called: Called) -> None:
        self._called = called

    def __enter__(self) -> None:
        _here.called.append(self._called)
        self._installed = _install()

    def __exit__(self, *error: object) -> None:
        _here.called.pop()
        if self._installed:
            _uninstall()


def _install() -> bool:
    """Starts watching if Dynamo is loaded; returns whether it did."""
    global _watching, _plain
    found = SET_EVAL_FRAME.get()
    if found is None:
        return False  # nothing has been compiled in this process
    with _lock:
        _watching += 1
        if _watching == 1:
            _plain = found
            setattr(sys.modules[_MODULE], _SETS, watched(_plain, _look))
    return True


def _uninstall() -> None:
    """Ends one `_install`; the last one restores torch."""
    global _watching
    with _lock:
        _watching -= 1
        if not _watching:
            setattr(sys.modules[_MODULE], _SETS, _plain)


def _look(frame: FrameType, callback: Any) -> None:
    """Reports the compiled function that calls `set_eval_frame(None)` from its wrapper."""
    if callback is None and _here.called and frame.f_code.co_name == _ENTRY:
        function = frame.f_locals.get("fn")
        found = getattr(function, "__qualname__", "") or type(function).__name__
        _here.called[-1](str(found).rpartition("<locals>.")[2])
