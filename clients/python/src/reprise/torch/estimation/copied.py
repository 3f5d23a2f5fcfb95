# SPDX-License-Identifier: Apache-2.0
"""Copies of a model and of its inputs that have no memory, whose forward the program does not see.

    refuse_to_disturb(model)             # RepriseError: says why it is not copied unasked
    fake = faked(model, mode, device)
    with unnoticed(model): fake(...)     # what its forward does elsewhere is undone

A forward may do more than compute: count its calls, fill a list, cache a mask. What the modules
hold is copied with them, and only copied modules are changed. What the forward's code reaches
beyond them is put back: global variables, closures, class attributes and default arguments that its
functions name, with what lists, dictionaries and sets among them hold; caches of functions that
have grown are emptied. What it prints on this thread is not shown, since the real forward will
print it. Linear in the attributes and the code of the model.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reprise.base.errors import RepriseError
from reprise.torch.estimation import sharded
from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.estimation.shape import Shape
from reprise.torch.rerun.repeatable import attributes, hooked

# Values that modules may hold in Python, and functions that are looked into.
MOST = 20_000
# Bytes of an array that is copied.
LARGE = 1 << 24
_NUMBERS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_CHANGES = (list, dict, set, deque)
# By which libraries tell fake tensors from others, and go another way with them.
_TELL_FAKES = (("transformers.utils.import_utils", "is_fake_tensor"),)
# Packages whose functions are not looked into: they keep nothing of what they are given.
_LIBRARIES = ("torch", "numpy", "builtins", "typing", "collections", "functools", "math")


def faked(model: nn.Module, mode: FakeTensors, device: str) -> nn.Module:
    """Returns a copy of the model without memory. Shared parameters stay shared. Tensors that
    modules hold as attributes stay on their device, unless that is none."""
    memo: dict[int, Any] = {}
    with mode:
        if mode.shards:
            sharded.copy_parameters(model, memo, device)
        for tensor in {id(t): t for t in (*model.parameters(), *model.buffers())}.values():
            if id(tensor) in memo:
                continue
            fake = Shape.of(tensor).fake(device)
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
        for _, value in _held(model):
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = Shape.of(value).fake(device if value.is_meta else None)
    if mode.shards:
        sharded.copy_modules(model, memo)
    copied = copy.deepcopy(model, memo)
    if mode.shards:
        with mode:
            sharded.shard_copies(model, memo)
    return copied


def refuse_to_disturb(model: nn.Module) -> None:
    """Raises RepriseError if hooks would see what a copy of the model does, or if what its modules
    hold beside tensors should not be copied unasked."""
    if hooked(model, sharded.of_sharding):
        raise RepriseError("hooks of the program would be called once more")
    sharded.refuse_unknown(model)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise RepriseError(f"{path} is compiled with TorchScript, not to be copied")
    for number, (where, value) in enumerate(_held(model)):
        if number == MOST:
            raise RepriseError(f"{where} holds too much to be copied")
        if isinstance(value, Tensor):
            continue
        if getattr(value, "nbytes", 0) > LARGE:
            raise RepriseError(f"{where} holds a large {type(value).__name__}")
        if hasattr(type(value), "__del__"):
            raise RepriseError(f"{where} holds a {type(value).__name__}, not to be copied")


def _held(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields what modules hold beside parameters, buffers, numbers and code, and what is in that,
    each with the attribute that it is found in."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, attribute in attributes(module):
            todo = [] if sharded.is_state(name) else [attribute]
            while todo:
                value = todo.pop()
                if isinstance(value, (*_NUMBERS, *_CODE, nn.Module)) or id(value) in seen:
                    continue
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value
                if not isinstance(value, Tensor):
                    todo += _held_by(value)


def _held_by(value: Any) -> list[Any]:
    """Returns what a value holds that is copied with it."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    return list(getattr(value, "__dict__", {}).values())


@contextmanager
def unnoticed(model: nn.Module) -> Iterator[None]:
    """Undoes what the code of a model's forward does to variables outside of it, and hides what it
    prints, and that its tensors are fake."""
    outside = _Outside(model)
    printed = _Muted()
    sys.stdout, before = printed, sys.stdout
    printed.to = before
    told = [(sys.modules[of], name) for of, name in _TELL_FAKES if of in sys.modules]
    functions = [(of, name, vars(of)[name]) for of, name in told if name in vars(of)]
    for of, name, _ in functions:
        setattr(of, name, lambda _: False)
    try:
        yield
    finally:
        for of, name, function in functions:
            setattr(of, name, function)
        if sys.stdout is printed:
            sys.stdout = before
        outside.restore()


class _Muted:
    """Standard output, without what this thread writes."""

    def __init__(self) -> None:
        self.to: Any = None
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return len(text)
        return int(self.to.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.to, name)


class _Outside:
    """The variables that the functions of a model's classes name, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._variables: list[tuple[MutableMapping[str, Any], str, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._attributes: list[tuple[type, str, Any]] = []
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._caches: dict[int, tuple[Any, int]] = {}
        self._seen: set[int] = set()
        todo: list[Any] = list({type(m) for m in model.modules()})
        while todo and len(self._seen) < MOST:
            todo += self._look_into(todo.pop())

    def _look_into(self, value: Any) -> list[Any]:
        """Remembers what a function or class names; returns what else is to be looked into."""
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(value, functools._lru_cache_wrapper):
            self._caches[id(value)] = value, value.cache_info().misses
        if isinstance(value, (staticmethod, classmethod, property, functools.cached_property)):
            value = getattr(value, "__func__", None) or getattr(value, "fget", None)
        if isinstance(value, types.MethodType):
            value = value.__func__
        if id(value) in self._seen or _of_library(value):
            return [] if wrapped is None else [wrapped]
        self._seen.add(id(value))
        if isinstance(value, type):
            found = [wrapped, *value.__mro__[1:]]
            for name, held in tuple(vars(value).items()):
                found.append(self._keep(held))
                if not name.startswith("__"):
                    self._attributes.append((value, name, held))
            return [one for one in found if one is not None]
        if not isinstance(value, types.FunctionType):
            return [] if wrapped is None else [wrapped]
        found = [wrapped]
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            found.append(self._keep(default))
        for cell in value.__closure__ or ():
            try:
                self._cells.append((cell, cell.cell_contents))
            except ValueError:  # not filled yet
                continue
            found.append(self._keep(cell.cell_contents))
        known = value.__globals__
        for name in _names(value.__code__):
            if name in known:
                self._variables.append((known, name, known[name]))
                found.append(self._keep(known[name]))
        return [one for one in found if one is not None]

    def _keep(self, value: Any) -> Any:
        """Remembers what a container holds; returns the value if it is to be looked into."""
        if type(value) in _CHANGES and len(value) < MOST:
            self._contents.setdefault(id(value), (value, copy.copy(value)))
            return None
        kinds = (type, types.FunctionType, types.MethodType, staticmethod, classmethod, property)
        is_code = isinstance(value, (*kinds, functools._lru_cache_wrapper))
        return value if is_code or hasattr(value, "__wrapped__") else None

    def restore(self) -> None:
        for variables, name, value in self._variables:
            if variables.get(name) is not value:
                variables[name] = value
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                cell.cell_contents = value
        for owner, name, value in self._attributes:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
        for held, before in self._contents.values():
            _refill(held, before)
        for cache, misses in self._caches.values():
            if cache.cache_info().misses != misses:
                cache.cache_clear()


def _refill(held: Any, before: Any) -> None:
    """Puts the former contents of a container back, if they are others now."""
    if isinstance(held, dict):
        same = len(held) == len(before) and all(held.get(k, held) is v for k, v in before.items())
    elif isinstance(held, set):
        same = held == before
    else:
        same = len(held) == len(before) and all(map(operator.is_, held, before))
    if not same:
        held.clear()
        (held.update if isinstance(held, (dict, set)) else held.extend)(before)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the global names that code uses, with that of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_library(value: Any) -> bool:
    """Returns whether code belongs to a library that is not looked into."""
    module = getattr(value, "__module__", None)
    return not isinstance(module, str) or module.partition(".")[0] in _LIBRARIES
