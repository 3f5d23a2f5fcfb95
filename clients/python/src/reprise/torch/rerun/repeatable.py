# SPDX-License-Identifier: Apache-2.0
"""Whether a forward can run again without the program noticing.

    before = Remembered(model)           # before a forward
    before.differs(Remembered(model))    # after it: it left something behind in Python
    hooked(model), any(map(observed, model.parameters()))    # hooks would be called once more

A forward that counts its calls, carries a hidden state or a generator of its own from one step to
the next, or is observed by hooks, cannot run twice in a step. Looked at are the attributes of every
module, and what is in them, a few levels deep; variables elsewhere cannot be seen. Linear in the
attributes.
"""

from __future__ import annotations

import contextlib
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

# Levels of containers and objects below an attribute that are looked into.
LEVELS = 4
# Values that are remembered of one model at most: what is looked at before and after a forward
# must take less time than the forward.
MOST = 20_000
_TORCH = frozenset(nn.Module().__dict__)  # attributes every module has
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(
    model: nn.Module, harmless: Callable[[Callable[..., Any]], bool] = lambda _: False
) -> bool:
    """Returns whether hooks that are not harmless observe the forwards or backwards of a model."""
    return any(getattr(modules, f"_global{name}", None) for name in _HOOKS) or any(
        not harmless(hook)
        for module in model.modules()
        for name in _HOOKS
        for hook in getattr(module, name, {}).values()
    )


def attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields what the program has given a module beside what every module has."""
    for name, value in module.__dict__.items():
        if name not in _TORCH and name != "forward":
            yield name, value


def observed(parameter: Tensor) -> bool:
    """Returns whether hooks observe or change the gradient of a parameter."""
    return bool(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


class _Object:
    """The identity of an object; of a tensor, its version too."""

    __slots__ = ("_id", "_version", "_weak")

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        self._version = -1
        if isinstance(value, Tensor) and not value.is_inference():
            self._version = value._version
        self._weak: weakref.ref[Any] | None = None
        with contextlib.suppress(TypeError):
            self._weak = weakref.ref(value)

    def same(self, other: _Object) -> bool:
        """Returns whether both are the same living object, at the same version."""
        # A new object may have the address of one that has died.
        alive = self._weak is None or self._weak() is not None
        return alive and self._id == other._id and self._version == other._version


class Remembered:
    """What the modules of a model hold in Python."""

    def __init__(self, model: nn.Module) -> None:
        self._leaves: list[tuple[int, Any]] = []
        for module in model.modules():
            for _, value in attributes(module):
                for leaf in _leaves(value, LEVELS):
                    if len(self._leaves) >= MOST:
                        return
                    self._leaves.append((id(module), leaf))

    def differs(self, now: Remembered) -> bool:
        """Returns whether any remembered object was replaced, or a tensor written."""
        return len(self._leaves) != len(now._leaves) or any(
            a[0] != b[0] or not _same(a[1], b[1])
            for a, b in zip(self._leaves, now._leaves, strict=True)
        )


class Parameters(Remembered):
    """The identities and versions of a model's parameters: where they are swapped (functional_call)
    or written (SAM) within a step, its gradients are those of others."""

    def __init__(self, model: nn.Module) -> None:
        self._leaves = [(0, _Object(p)) for p in model.parameters()]


def _leaves(value: Any, levels: int) -> Iterator[Any]:
    if isinstance(value, _PLAIN):
        yield value
    elif isinstance(value, torch.Generator):
        yield bytes(value.get_state().tolist()) if value.device.type == "cpu" else _Object(value)
    elif isinstance(value, random.Random):
        yield value.getstate()
    elif isinstance(value, (Tensor, nn.Module, type)) or callable(value) or not levels:
        yield _Object(value)
    elif isinstance(value, dict):
        yield len(value)
        for key in list(value):
            yield key if isinstance(key, _PLAIN) else _Object(key)
            yield from _leaves(value[key], levels - 1)
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        yield len(value)
        for item in list(value):
            yield from _leaves(item, levels - 1)
    else:
        yield from _of_object(value, levels)


def _of_object(value: Any, levels: int) -> Iterator[Any]:
    yield _Object(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        yield repr(value.bit_generator.state)
    elif numpy is not None and isinstance(value, numpy.ndarray) and value.nbytes <= 1 << 16:
        yield value.tobytes()
    else:
        yield from _leaves(getattr(value, "__dict__", None), levels - 1)


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, _Object):
        return left.same(right)
    return bool(left == right) or (left != left and right != right)
