# SPDX-License-Identifier: Apache-2.0
"""Replacements for attributes of the program's model or of torch that look like the originals.

    vars(model)["forward"] = Forward(model, own, around)        # a module's forward
    vars(model)["_call_impl"] = Caller(model, own, before, standing)    # what calls its forward
    vars(model)["__reduce_ex__"] = Reduce(model, own, without)  # how it is copied and pickled
    torch.manager = lifted(torch.manager, off, on)              # a context manager
    optimizer.state = State(optimizer.state, home)              # what an optimizer keeps

A program that inspects, copies, pickles or exports its model finds the originals.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch

from reprise.torch.internals.calls import around
from reprise.torch.internals.guard import again, quietly, surely

# A docstring is an attribute of its class, and would hide the one that the class inherits.
_DOC: Any = property(lambda self: self.__wrapped__.__doc__)


class State(MutableMapping[Any, Any]):
    """What `optimizer.state` is while some of it is elsewhere: whoever looks calls `home` first."""

    def __init__(self, real: Any, home: Callable[[], None]) -> None:
        self.real = real
        self._home = home

    def _looked(self) -> Any:
        again(self._home)
        return self.real

    def __getitem__(self, key: Any) -> Any:
        return self._looked()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._looked()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._looked()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._looked())

    def __len__(self) -> int:
        return len(self.real)

    def __reduce__(self) -> Any:
        return self._looked().__reduce__()


def state_as_it_is(optimizer: Any) -> Any:
    """Returns what an optimizer keeps, wherever it is: to be named and counted, not read."""
    state = optimizer.state
    return state.real if isinstance(state, State) else state


class Method:
    """Replaces a method in the `__dict__` of a module and looks like the original one. Unlike a
    bound method it refers to the module weakly, because a module must not keep itself alive."""

    _NAME: str

    def __init__(self, model: Any, own: Any) -> None:
        self._model = weakref.ref(model)
        self._own = own  # what the program had put there, if anything

    @property
    def __wrapped__(self) -> Any:
        if self._own is not None:
            return self._own
        model: Any = self._model()
        return MethodType(getattr(type(model), self._NAME), model)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the original method."""
        if self._own is not None:
            return self._own(*args, **kwargs)
        model: Any = self._model()
        return getattr(type(model), self._NAME)(model, *args, **kwargs)

    # inspect, torch.jit, torch.export and pickle must take it for a method.
    __class__: Any = property(lambda self: type(self.__wrapped__))

    __doc__: Any = _DOC

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model: Any = self._model()
        if self._own is not None:
            return copy.deepcopy(self._own, memo)
        return MethodType(getattr(type(model), self._NAME), memo.get(id(model), model))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._own is not None:
            return self._own.__reduce_ex__(protocol)
        return getattr, (self._model(), self._NAME)


class Forward(Method):
    """Replaces the forward of a module: its calls go to `around_(plain, args, kwargs)`, until
    `leave`. A program may keep it after that, inside what it has made of it. It has no methods
    beyond those of a method: code that looks for others finds those of the original."""

    __doc__: Any = _DOC
    _NAME = "forward"

    def __init__(self, model: Any, own: Any, around_: Callable[..., Any]) -> None:
        super().__init__(model, own)
        self._around: Callable[..., Any] | None = around_

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        around_ = self._around
        if around_ is None or torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)  # the compiler sees the model as it was
        return around(around_, self.plain, args, kwargs)


def leave(forward: Forward) -> None:
    """Makes all calls of a replaced forward go to the original one from now on."""
    forward._around = None


def reaches(found: Any, forward: Forward) -> bool:
    """Returns whether `found` is this replacement, or replaces it with none of the program's
    functions between them."""
    while type(found) is Forward and found is not forward:
        found = found._own
    return found is forward


def of_the_program(found: Any) -> Any:
    """Returns what the program has put in place of a forward: of a replacement that was left and
    that it has put back, what that replaced. None stands for the forward of the class."""
    while type(found) is Forward and found._around is None:
        found = found._own
    return found


class Caller(Method):
    """Replaces the method of a module that looks up its forward and calls it. `before()` is called
    first where the forward is not the one that stands there, by name in `standing`."""

    __doc__: Any = _DOC
    _NAME = "_call_impl"

    def __init__(
        self, model: Any, own: Any, before: Callable[[], None], standing: dict[str, Any]
    ) -> None:
        super().__init__(model, own)
        self._before = before
        self._standing = standing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            found = vars(self._model()).get(Forward._NAME)
            if found is not self._standing[Forward._NAME]:
                quietly(self._before)
        return self.plain(*args, **kwargs)

    # `model.compile()` gives this object to torch.compile, which then takes what these name: the
    # original method.
    @property
    def _torchdynamo_orig_callable(self) -> Any:
        return self.__wrapped__

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)


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


def lifted(
    plain: Any, off: Callable[[list[Any]], None], on: Callable[[list[Any]], None]
) -> Callable[..., Any]:
    """Returns a replacement for a context manager of torch's, inside which our hooks are removed:
    `off(taken)` appends to a list what it removes, `on(taken)` restores that."""

    @contextmanager
    def replaced(*args: Any) -> Iterator[None]:
        taken: list[Any] = []
        surely(off, taken)
        try:
            with plain(*args):
                yield
        finally:
            surely(on, taken)

    return replaced
