# SPDX-License-Identifier: Apache-2.0
"""Saved-tensor hooks and dispatch modes that lie open over code of the program.

    with Hooks(pack, unpack): ...        # gives way to transforms of torch.func
    close(mode)                          # a mode or hooks that do nothing any more
    sweep()                              # before a forward: what could not go then goes now

Two things torch does not allow of them, and the program may do all the same:

Transforms (torch.func.grad, vmap) refuse to run where saved-tensor hooks are set. In a plain job
they run; so ours are taken off for as long as a transform lasts. What autograd saves in there
stays where it is.

A mode or a pair of hooks is taken off by the thread that put it on, last on first off, and not
inside a backward: the engine puts back what was there when it began. A step may end elsewhere (an
optimizer that steps in a hook of the backward, a loop whose parts run in several threads). What
cannot go then stays where it is, does nothing, and goes at the next occasion.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from reprise.torch.internals import saved_hooks, stand_ins

__all__ = ["Hooks", "Open", "close", "sweep"]

_DISABLE = "disable_saved_tensors_hooks"
_plain: Any = getattr(torch.autograd.graph, _DISABLE, None)
_lock = threading.Lock()
_set = 0  # pairs of hooks of ours, on all threads


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.hooks: list[Hooks] = []


_here = _OfThread()


class Hooks(saved_tensors_hooks):
    """Saved-tensor hooks that let transforms run inside them and keep what they cannot pack."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        # Those of the compiled half do so by themselves.
        if isinstance(pack, BuiltinFunctionType):
            super().__init__(pack, unpack)
        else:
            super().__init__(saved_hooks.packing(pack), saved_hooks.unpacking(unpack))

    def __enter__(self) -> None:
        global _set
        super().__enter__()
        _here.hooks.append(self)
        with _lock:
            _set += 1
            if _plain is not None:
                setattr(torch.autograd.graph, _DISABLE, _disabled)

    def __exit__(self, *error: object) -> None:
        global _set
        super().__exit__(*error)
        if self in _here.hooks:
            _here.hooks.remove(self)
        with _lock:
            _set -= 1
            if not _set and _plain is not None:
                setattr(torch.autograd.graph, _DISABLE, _plain)

    @property
    def on_top(self) -> bool:
        """Returns whether these are the innermost saved-tensor hooks."""
        autograd: Any = torch._C._autograd
        found = autograd._top_saved_tensors_default_hooks(True)
        return found is not None and found[0] == self.pack_hook


def _take_off(taken: list[Hooks]) -> None:
    """Those of ours that lie on top, into the list."""
    autograd: Any = torch._C._autograd
    for hooks in reversed(_here.hooks):
        if not hooks.on_top:
            break  # hooks of the program: refused, as without us
        autograd._pop_saved_tensors_default_hooks()
        taken.append(hooks)


def _put_back(taken: list[Hooks]) -> None:
    """Pushes the hooks that `_take_off` has taken, the last one first."""
    autograd: Any = torch._C._autograd
    while taken:
        hooks = taken[-1]
        autograd._push_saved_tensors_default_hooks(hooks.pack_hook, hooks.unpack_hook)
        taken.pop()


# What a transform puts around itself.
_disabled = stand_ins.Lifted(_plain, _take_off, _put_back)


class Open(Protocol):
    """Something that lies open from one call of the program to another."""

    thread: int  # that put it on

    def on_top(self) -> bool:
        """Returns whether this is the innermost mode or pair of hooks, which can be removed."""

    def take_off(self) -> None:
        """Takes it off. Only where `on_top` is true."""


_left: list[Open] = []


def close(one: Open) -> None:
    """Takes off what does nothing any more, or leaves it for the next occasion."""
    _left.append(one)
    sweep()


def sweep() -> None:
    """Takes off what is left on this thread, as far as it can."""
    if not _left or torch._C._current_graph_task_id() != -1:
        return
    for one in reversed(_left.copy()):
        if one.thread == threading.get_ident() and one.on_top():
            _left.remove(one)
            one.take_off()
