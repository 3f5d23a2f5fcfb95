# SPDX-License-Identifier: Apache-2.0
"""What fully_shard (FSDP2) knows of a model; and lets its hooks run without our modes.

    states_of(model)              # what it knows of groups of modules
    shards_of(model)              # what this rank has of parameters that are gathered
    with unwatched(kind): ...       # a backward: the hooks run without function modes of this class
    gathers = FirstGathers()
    gathers.hide(); gathers.show()  # between: no mode sees what is made in a first forward alone

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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.internals.distributed import ranks_have_met
from reprise.torch.internals.guard import quietly, surely

PUBLIC = "torch.distributed.fsdp"
PACKAGE = f"{PUBLIC}._fully_shard"


def sharded_kind() -> Any:
    """Returns the class of sharded modules; None if the program does not use `fully_shard`."""
    return getattr(sys.modules.get(PUBLIC), "FSDPModule", None)


def states_of(model: nn.Module) -> list[Any]:
    """Returns what `fully_shard` knows of groups of modules, each after those within it."""
    kind = sharded_kind()
    found: dict[int, Any] = {}
    for module in reversed(list(model.modules())) if kind is not None else ():
        if isinstance(module, kind):
            state: Any = module._get_fsdp_state()
            found.pop(id(state), None)
            found[id(state)] = state
    return list(found.values())


def params_of(state: Any) -> list[Any]:
    """Returns what is known of the parameters of a group."""
    group = state._fsdp_param_group
    return [] if group is None else group.fsdp_params


def shards_of(model: nn.Module) -> dict[int, nn.Parameter]:
    """Returns what this rank has of each parameter that may be gathered, by the id of the gathered
    one. Gradients are those of the shards."""
    known = (param for state in states_of(model) for param in params_of(state))
    return {id(getattr(param, "_unsharded_param", None)): param.sharded_param for param in known}


class _Methods:
    """Methods of a class of fully_shard, replaced as long as anyone needs that."""

    def __init__(self, module: str, kind: str, names: tuple[str, ...]) -> None:
        self._where, self._kind, self._names = f"{PACKAGE}.{module}", kind, names
        self._lock = threading.Lock()
        self._users = 0
        self._plain: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}

    @property
    def kind(self) -> Any:
        """The class; None if the program does not use fully_shard."""
        return getattr(sys.modules.get(self._where), self._kind, None)

    def replace(self, replacement: Callable[[str, Callable[..., Any]], Any]) -> None:
        """Replaces each of them by what is made of its name and itself."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                for name in self._names:
                    if (plain := vars(self.kind).get(name)) is not None:
                        self._plain[name], self._ours[name] = plain, replacement(name, plain)
                        setattr(self.kind, name, self._ours[name])

    def put_back(self) -> None:
        """Puts them back if nobody else needs the others."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users == 0:
                for name in tuple(self._plain):
                    if vars(self.kind).get(name) is self._ours[name]:
                        setattr(self.kind, name, self._plain[name])
                    del self._plain[name], self._ours[name]


_hooks = _Methods("_fsdp_param_group", "FSDPParamGroup", ("pre_backward", "post_backward"))
# What makes tensors when it is called first, and under which attribute.
_MADE = {
    "init_all_gather_outputs": "all_gather_outputs",
    "init_unsharded_param": "_unsharded_param",
}
_makers = _Methods("_fsdp_param", "FSDPParam", tuple(_MADE))


def unwatched(kind: type) -> AbstractContextManager[None]:
    """Takes modes of this class, where they are the innermost, out of the way of the hooks that run
    inside this context. Does nothing if the program does not use fully_shard."""
    used = ranks_have_met() and _hooks.kind is not None
    return _unwatched(kind) if used else nullcontext()


@contextmanager
def _unwatched(kind: type) -> Iterator[None]:
    quietly(_hooks.replace, lambda _, plain: _without(plain, kind))
    try:
        yield
    finally:
        surely(_hooks.put_back)


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
        or not has_plain_shard(param)
        for param in getattr(group, "fsdp_params", (None,))
    )


def has_plain_shard(param: Any) -> bool:
    """Returns whether what this rank has of a parameter is a plain tensor, not one of a subclass,
    which may gather it in its own way."""
    return type(getattr(param, "_sharded_local_tensor", None)) in (Tensor, nn.Parameter)


class FirstGathers:
    """While they are hidden, no mode sees the tensors that fully_shard makes for parameters that
    are gathered for the first time. Later gathers fill the same ones, so a first step that runs
    under a plan is like those that follow."""

    def __init__(self) -> None:
        self._hidden = False

    def hide(self) -> None:
        """Hides them until `show`. Does nothing if the program does not use fully_shard."""
        if not self._hidden and _makers.kind is not None:
            self._hidden = True
            _makers.replace(_unseen)

    def show(self) -> None:
        """Lets modes see again whatever is made."""
        if self._hidden:
            self._hidden = False
            _makers.put_back()


def _unseen(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement for a method, which no mode sees while what it makes is not there."""

    @functools.wraps(plain)
    def method(param: Any, *args: Any, **kwargs: Any) -> Any:
        made = getattr(param, _MADE[name], None)
        is_there = len(made) > 0 if type(made) is list else made is not None
        if is_there or not has_plain_shard(param):
            return plain(param, *args, **kwargs)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return plain(param, *args, **kwargs)

    return method
