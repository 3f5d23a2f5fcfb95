# SPDX-License-Identifier: Apache-2.0
"""Replacements for attributes of the program's model or of torch that look like the originals.

    vars(model)["forward"] = Method(model, own, around)         # a module's forward
    vars(model)["__reduce_ex__"] = Reduce(model, own, without)  # how it is copied and pickled
    torch.manager = Lifted(torch.manager, off, on)              # a context manager

A program that inspects, copies, pickles or exports its model finds the originals.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch

from reprise.torch.internals.calls import around
from reprise.torch.internals.guard import surely

__all__ = ["Lifted", "Method", "Reduce"]


class Method:
    """Replaces `vars(model)["forward"]` and looks like the original method; its calls go to
    `around_(plain, args, kwargs)`. Unlike a bound method it refers to the module weakly, because a
    module must not keep itself alive."""

    def __init__(self, model: Any, own: Any, around_: Callable[..., Any]) -> None:
        self._model = weakref.ref(model)
        self._own = own  # what the program had put there, if anything
        self._around = around_

    @property
    def __wrapped__(self) -> Any:
        if self._own is not None:
            return self._own
        model: Any = self._model()
        return MethodType(type(model).forward, model)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the original forward."""
        return self.__wrapped__(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)  # the compiler sees the model as it was
        return around(self._around, self.plain, args, kwargs)

    # inspect, torch.jit, torch.export and pickle must take it for a method.
    __class__: Any = property(lambda self: type(self.__wrapped__))

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.__wrapped__.__doc__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model: Any = self._model()
        if self._own is not None:
            return copy.deepcopy(self._own, memo)
        return MethodType(type(model).forward, memo.get(id(model), model))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._own is not None:
            return self._own.__reduce_ex__(protocol)
        return getattr, (self._model(), "forward")


class Reduce:
    """Replaces `vars(model)["__reduce_ex__"]`: the module is copied and pickled with the state that
    `without` returns, which has nothing of ours."""

    def __init__(self, model: Any, own: Any, without: Callable[[Any], Any]) -> None:
        self._model = weakref.ref(model)
        self._own = own
        self._without = without

    def __call__(self, protocol: Any) -> Any:
        model: Any = self._model()
        kind: Any = type(model)
        reduced = (self._own or partial(kind.__reduce_ex__, model))(protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced
        made, arguments, state, *rest = reduced
        if isinstance(state, dict):
            state = self._without(state)
        elif isinstance(state, tuple) and state and isinstance(state[0], dict):  # with slots
            state = (self._without(state[0]), *state[1:])
        return (made, arguments, state, *rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model: Any = self._model()
        return MethodType(type(model).__reduce_ex__, memo.get(id(model), model))


class Lifted:
    """Replaces a context manager of torch's, inside which our hooks are removed: `off(taken)`
    appends to a list what it removes, `on(taken)` restores that."""

    def __init__(
        self, plain: Any, off: Callable[[list[Any]], None], on: Callable[[list[Any]], None]
    ) -> None:
        self._plain, self._off, self._on = plain, off, on

    @contextmanager
    def __call__(self, *args: Any) -> Iterator[None]:
        taken: list[Any] = []
        surely(self._off, taken)
        try:
            with self._plain(*args):
                yield
        finally:
            surely(self._on, taken)
