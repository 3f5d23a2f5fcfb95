# SPDX-License-Identifier: Apache-2.0
"""Lets the hooks of fully_shard run without our function modes.

    with unwatched(kind): ...       # a backward: the hooks run without the modes of this class

Before and after the backward of each block these hooks gather parameters and reduce gradients. Both
are written in Python: some 25 calls of torch functions per parameter, each of which a function mode
would see. They write no tensor that is held for a replay. What a replay reads of gathered
parameters it reads while they are there (capture/lent.py).

Code of the program may run within the hooks: after an all-reduce, when a parameter has its
gradient, or in the gathering of a tensor subclass. The hooks of a group of parameters that has such
code run under the mode.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.internals.guard import quietly, surely

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_HOOKS = ("pre_backward", "post_backward")

_lock = threading.Lock()
_open = 0  # backwards
_plain: dict[str, Any] = {}
_ours: dict[str, Any] = {}


@contextmanager
def unwatched(kind: type) -> Iterator[None]:
    """Takes modes of this class, where they are the innermost, out of the way of the hooks that run
    inside this context. Does nothing if the program does not use fully_shard."""
    group = getattr(sys.modules.get(_MODULE), "FSDPParamGroup", None)
    if group is not None:
        quietly(_enter, group, kind)
    try:
        yield
    finally:
        if group is not None:
            surely(_leave, group)


def _enter(group: Any, kind: type) -> None:
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            for name in _HOOKS:
                if (plain := vars(group).get(name)) is not None:
                    _plain[name], _ours[name] = plain, _without(plain, kind)
                    setattr(group, name, _ours[name])


def _leave(group: Any) -> None:
    global _open
    with _lock:
        _open = max(0, _open - 1)
        if _open == 0:
            for name in tuple(_plain):
                if vars(group).get(name) is _ours[name]:
                    setattr(group, name, _plain[name])
                del _plain[name], _ours[name]


@functools.cache
def _without(plain: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """Returns a replacement for a hook, which runs it without modes of this class."""

    @functools.wraps(plain)
    def hook(group: Any, *args: Any, **kwargs: Any) -> Any:
        taken: list[Any] = []
        quietly(_take, group, kind, taken)
        try:
            return plain(group, *args, **kwargs)
        finally:
            if taken:
                surely(_give_back, taken)

    return hook


def _take(group: Any, kind: type, taken: list[Any]) -> None:
    """Moves the innermost mode to `taken` if it is of this class and no code of the program may run
    in the hooks of this group."""
    depth = torch._C._len_torch_function_stack()
    if depth == 0 or type(torch._C._get_function_stack_at(depth - 1)) is not kind:
        return
    taken.append(torch._C._pop_torch_function_stack())
    may = True
    try:
        may = _calls_the_program(group)
    finally:
        if may:
            surely(_give_back, taken)


def _give_back(taken: list[Any]) -> None:
    torch._C._push_on_torch_function_stack(taken.pop())


def _calls_the_program(group: Any) -> bool:
    """Returns whether the hooks of a group of parameters may call code of the program, or cannot be
    told not to, because this torch has other names."""
    if getattr(group, "_all_reduce_hook", group) is not None:
        return True
    return any(
        getattr(getattr(param, "sharded_param", None), "_post_accumulate_grad_hooks", None)
        or type(getattr(param, "_sharded_local_tensor", None)) not in (Tensor, nn.Parameter)
        for param in getattr(group, "fsdp_params", (None,))
    )
