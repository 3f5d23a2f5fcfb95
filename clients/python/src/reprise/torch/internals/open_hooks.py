# SPDX-License-Identifier: Apache-2.0
"""Saved-tensor hooks and dispatch modes that stay active while code of the program runs.

    with Hooks(pack, unpack): ...        # lets transforms of torch.func run inside
    pack, unpack = for_parts(pack, unpack)      # hooks that see the plain tensor in a wrapper only
    close(mode)                          # a mode that is no longer used, with its hooks
    sweep()                              # before a forward: removes what could not be removed then

torch does not allow two things that a program may do all the same:

Transforms (torch.func.grad, vmap) refuse to run while saved-tensor hooks are set. Without Reprise
they run; so our hooks are removed for as long as a transform lasts. What autograd saves in there is
not packed.

A mode or a pair of hooks must be removed by the thread that set it, in reverse order, and not
inside a backward: the engine restores what was there when it began. A step may end elsewhere (an
optimizer that steps in a hook of the backward, a loop whose parts run in several threads). What
cannot be removed then does nothing until it is removed at the next opportunity.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from reprise.torch.internals import saved_hooks, stand_ins
from reprise.torch.internals.calls import AUTOGRAD, top_hooks
from reprise.torch.internals.modes import Mode
from reprise.torch.internals.subclass import part_of, put_back

_DISABLE = "disable_saved_tensors_hooks"
_plain: Any = getattr(torch.autograd.graph, _DISABLE)
_lock = threading.Lock()
_set = 0  # how many pairs of our hooks are set, on all threads


class _OfThread(threading.local):
    """Our pairs of hooks on this thread, the innermost last."""

    def __init__(self) -> None:
        self.hooks: list[Hooks] = []


_here = _OfThread()


class Hooks(saved_tensors_hooks):
    """Saved-tensor hooks that let transforms run inside them, and that leave a tensor to autograd
    if the pack hook fails."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        # Hooks of the native engine handle their errors themselves.
        if isinstance(pack, BuiltinFunctionType):
            super().__init__(pack, unpack)
        else:
            super().__init__(saved_hooks.packing(pack), saved_hooks.unpacking(unpack))

    def __enter__(self) -> None:
        global _set
        AUTOGRAD._push_saved_tensors_default_hooks(self.pack_hook, self.unpack_hook)
        _here.hooks.append(self)
        with _lock:
            _set += 1
            setattr(torch.autograd.graph, _DISABLE, _disabled)

    def __exit__(self, *error: object) -> None:
        global _set
        AUTOGRAD._pop_saved_tensors_default_hooks()
        if self in _here.hooks:
            _here.hooks.remove(self)
        with _lock:
            _set -= 1
            if not _set:
                setattr(torch.autograd.graph, _DISABLE, _plain)

    @property
    def on_top(self) -> bool:
        """Returns whether these are the innermost saved-tensor hooks."""
        found = top_hooks()
        return found is not None and found[0] == self.pack_hook


def _take_off(taken: list[Hooks]) -> None:
    """Removes our hooks from the top of the stack and appends them to the list."""
    for hooks in reversed(_here.hooks):
        if not hooks.on_top:
            break  # hooks of the program: torch refuses the transform, as it does without us
        AUTOGRAD._pop_saved_tensors_default_hooks()
        taken.append(hooks)


def _put_back(taken: list[Hooks]) -> None:
    """Sets the hooks that `_take_off` has removed, in reverse order."""
    while taken:
        hooks = taken[-1]
        AUTOGRAD._push_saved_tensors_default_hooks(hooks.pack_hook, hooks.unpack_hook)
        taken.pop()


# The replacement for the context manager that transforms enter.
_disabled = stand_ins.lifted(_plain, _take_off, _put_back)


_left: list[Mode] = []


def close(one: Mode) -> None:
    """Removes a mode that is no longer used, with its hooks, or leaves it for the next
    opportunity."""
    _left.append(one)
    sweep()


def sweep() -> None:
    """Removes what `close` has left on this thread, as far as possible."""
    if not _left or torch._C._current_graph_task_id() != -1:
        return
    for one in reversed(_left.copy()):
        if one.thread == threading.get_ident() and one.on_top():
            _left.remove(one)
            one.take_off()


Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class _Wrapped:
    """What autograd keeps of a wrapper: what is kept of its part, and how to put that back."""

    __slots__ = ("around", "packed")

    def __init__(self, packed: Any, around: Callable[[Tensor], Tensor]) -> None:
        self.packed, self.around = packed, around

    def plainly(self) -> Tensor:
        return self.around(self.packed.plainly())

    def let_go(self) -> None:
        self.packed.let_go()


def for_parts(pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack]:
    """Returns saved-tensor hooks that give these hooks the part of a wrapper instead of the
    wrapper."""

    def pack_part(tensor: Tensor) -> Any:
        part = part_of(tensor)
        return pack(tensor) if part is None else _Wrapped(pack(part), put_back(tensor))

    def unpack_part(packed: Any) -> Tensor:
        if type(packed) is not _Wrapped:
            return unpack(packed)
        return packed.around(unpack(packed.packed))

    return pack_part, unpack_part
