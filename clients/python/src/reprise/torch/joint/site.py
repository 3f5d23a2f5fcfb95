# SPDX-License-Identifier: Apache-2.0
"""Where the calls of a compiled model go, and how it was compiled.

    site = site_of(model)            # None: nothing has compiled it as a whole
    again = site.compiled(backend)   # the model compiled once more, with the same options
    site.arm(around)                 # its calls now run inside around(call, args, kwargs)
    site.remove()

| compiled by | its calls |
|---|---|
| `torch.compile(model)` | of the wrapper's forward |
| `model.compile()` | of what PyTorch keeps in the module itself |
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from reprise.errors import RepriseError
from reprise.torch.internals.calls import Call, chained, method_of
from reprise.torch.internals.dynamo import is_compiled
from reprise.torch.internals.forward import ArmedForward

__all__ = ["Site", "site_of"]

_IN_PLACE = "_compiled_call_impl"
Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]


def site_of(model: nn.Module) -> Site | None:
    """Returns where the calls of a compiled model go; None if nothing has compiled it. Raises
    RepriseError if this torch does not tell how it was compiled."""
    if "dynamo_ctx" in model.__dict__ and isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return _Wrapper(model)
    if is_compiled(model.__dict__.get(_IN_PLACE)):
        return _InPlace(model)
    return None


class Site:
    """Where the calls of a compiled model can be redirected."""

    def __init__(self, model: nn.Module, context: Any) -> None:
        self._model = weakref.ref(model)
        backend: Any = getattr(context, "callback", None)
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        if not callable(backend):
            raise RepriseError(
                "this version of torch does not tell which backend compiled the model"
            )
        self.backend: Callable[..., Any] = backend  # with its mode and options
        self._options = {"dynamic": context._dynamic, "fullgraph": bool(context.fullgraph)}

    @property
    def root(self) -> nn.Module | None:
        """The model itself; None if it no longer exists."""
        return self._model()

    def compiled(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the model compiled by `backend`; it compiles at its first call."""
        made: Callable[..., Any] = torch.compile(self._callable(), backend=backend, **self._options)
        return made

    def _callable(self) -> Any:
        raise NotImplementedError

    def arm(self, around: Around) -> None:
        """Redirects the calls of the model to `around`; where that fails they are as they were."""

    def remove(self) -> None:
        """Leaves the calls of the model as they were. Calling it again does nothing."""


class _Wrapper(Site):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model.__dict__["dynamo_ctx"])
        self._forward: ArmedForward | None = None

    @property
    def root(self) -> nn.Module | None:
        model = self._model()
        return None if model is None else model._orig_mod  # type: ignore[return-value]

    def _callable(self) -> Any:
        return self.root

    def arm(self, around: Around) -> None:
        model = self._model()
        assert model is not None
        self._forward = ArmedForward(model, around)

    def remove(self) -> None:
        if self._forward is not None:
            self._forward.remove()


class _InPlace(Site):
    """Copies and pickles of such a module are not compiled, as PyTorch has it.

    The module holds what is put into it, and nothing here holds the module: what compiles it is
    given it at each call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, _context(model.__dict__[_IN_PLACE]))
        self._armed: weakref.ref[Any] | None = None

    def compiled(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        return method_of(self._model, super().compiled(backend))

    def _callable(self) -> Any:
        model = self._model()
        assert model is not None
        return type(model)._call_impl

    def arm(self, around: Around) -> None:
        model = self._model()
        assert model is not None
        own = model.__dict__[_IN_PLACE]

        def through(call: Call, *args: Any, **kwargs: Any) -> Any:
            return around(call, args, kwargs)

        armed: Any = chained(own, [through])
        armed.own = own
        self._armed = weakref.ref(armed)
        model.__dict__[_IN_PLACE] = armed

    def remove(self) -> None:
        model = self._model()
        if model is None or self._armed is None:
            return
        armed = self._armed()
        if armed is None:
            return
        own = armed.own
        if model.__dict__.get(_IN_PLACE) is armed:
            model.__dict__[_IN_PLACE] = own


def _context(function: Any) -> Any:
    """Returns the object of torch.compile that made a function, which the function holds."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    held = {} if code is None else dict(zip(code.co_freevars, cells, strict=True))
    if "self" not in held:
        raise RepriseError("this version of torch does not tell which backend compiled the model")
    return held["self"].cell_contents
