# SPDX-License-Identifier: Apache-2.0
"""Where the calls of a compiled model go, and how it was compiled.

    site = site_of(model)            # None: nothing has compiled it as a whole
    site = pieces_of(model)          # None: no part of it is compiled, or one in another way
    again = site.compiled(wrap)      # compiled once more, with the same options, by wrap(backend)
    site.arm(around)                 # its calls now run inside around(call, args, kwargs)
    site.remove()

| compiled by | its calls |
|---|---|
| `torch.compile(model)` | of the wrapper's forward |
| `model.compile()` | of what PyTorch keeps in the module itself |
| `block.compile()` for its blocks | of each of them; the model runs eagerly between them |

Compiled in pieces, `again(x)` runs the forward of the model as it is; each compiled part runs code
of Reprise's in the place of the program's own. That code stays in place until the next forward,
because checkpoints around a part call it once more in the backward.

Parts of one class and one kind that are compiled in the same way share one compiled function. What
runs again is one decision for all of them (whole.py), so a plan that treats equal blocks in two
ways has two kinds of them. A function keeps its compiled code apart from the program's
(`isolate_recompiles`), so that neither counts against the other's limit of recompilations, past
which code with `fullgraph=True` raises. A torch without that: no pieces.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from reprise.base.errors import RepriseError
from reprise.torch.internals.calls import Call, chained, method_of
from reprise.torch.internals.contracts import ISOLATES
from reprise.torch.internals.dynamo import compiled_parts, is_compiled
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.meter.state import model_device

_IN_PLACE = "_compiled_call_impl"
Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]
# Given a backend of torch.compile, returns the one to use in its place.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def site_of(model: nn.Module) -> CompiledModule | None:
    """Returns where the calls of a compiled model go; None if nothing has compiled it. Raises
    RepriseError if this torch does not tell how it was compiled."""
    if "dynamo_ctx" in model.__dict__ and isinstance(getattr(model, "_orig_mod", None), nn.Module):
        return _Wrapper(model)
    if is_compiled(model.__dict__.get(_IN_PLACE)):
        return _InPlace(model)
    return None


class Site:
    """Where the calls of a model can be redirected, and what compiles it again."""

    is_in_pieces = False  # its modules are compiled one by one, and it runs eagerly between them

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._forward: ArmedForward | None = None  # of the model; None: it is not armed
        self.part = 0  # that runs, or ran last
        # By part; what is compiled from now on is shared by equal parts of one kind. One that is
        # not named is of kind 0.
        self.kinds: dict[int, int] = {}

    @property
    def root(self) -> nn.Module | None:
        """The model itself; None if it no longer exists."""
        return self._model()

    def compiled(self, wrap: Wrap) -> Callable[..., Any]:
        """Returns the model compiled by `wrap(backend)`, where `backend` is the program's own; it
        compiles at its first call."""
        raise NotImplementedError

    @property
    def makes_graphs(self) -> bool:
        """Whether torch captures what it compiles here into CUDA graphs of its own."""
        raise NotImplementedError

    def arm(self, around: Around) -> None:
        """Redirects the calls of the model to `around`; where that fails they are as they were."""
        self._forward = ArmedForward(self._alive(), around)

    def remove(self) -> None:
        """Leaves the calls of the model as they were. Calling it again does nothing."""
        if self._forward is not None:
            self._forward.remove()

    def _alive(self) -> Any:
        """Returns the model that was given, which must exist."""
        model = self._model()
        assert model is not None
        return model


class CompiledModule(Site):
    """A module that torch.compile has compiled as a whole."""

    def __init__(self, model: nn.Module, context: Any) -> None:
        super().__init__(model)
        backend: Any = getattr(context, "callback", None)
        # torch 2.8 has no `fullgraph`, calls what wraps a backend by the name of what wraps a
        # function, and compiles whole graphs with another class.
        fullgraph = getattr(context, "fullgraph", False)
        inner = "backend" if hasattr(backend, "_torchdynamo_orig_backend") else "callable"
        while hasattr(backend, f"_torchdynamo_orig_{inner}"):
            fullgraph |= inner == "callable" and type(backend).__name__ == "ConvertFrameAssert"
            backend = getattr(backend, f"_torchdynamo_orig_{inner}")
        if not callable(backend):
            raise RepriseError(
                "this version of torch does not tell which backend compiled the model"
            )
        self.backend: Callable[..., Any] = backend  # with its mode and options
        self.options = {"dynamic": context._dynamic, "fullgraph": bool(fullgraph)}

    @property
    def makes_graphs(self) -> bool:
        name = getattr(self.backend, "compiler_name", "")
        if self.root is None or model_device(self.root).type != "cuda":
            return False
        if name != "inductor":
            return bool(name == "cudagraphs")
        import torch._inductor.config as inductor

        own: dict[str, Any] = getattr(self.backend, "config", {})  # of its mode and options
        return bool(own.get("triton.cudagraphs", inductor.triton.cudagraphs))

    def again(self, function: Any, wrap: Wrap, **more: bool) -> Callable[..., Any]:
        """Returns a function compiled as the module was, by `wrap(backend)`."""
        options: dict[str, Any] = {**self.options, **more}
        made: Callable[..., Any] = torch.compile(function, backend=wrap(self.backend), **options)
        return made


class _Wrapper(CompiledModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model.__dict__["dynamo_ctx"])

    @property
    def root(self) -> nn.Module | None:
        model = self._model()
        return None if model is None else model._orig_mod  # type: ignore[return-value]

    def compiled(self, wrap: Wrap) -> Callable[..., Any]:
        return self.again(self.root, wrap)


class _InPlace(CompiledModule):
    """Copies and pickles of such a module are not compiled, as PyTorch has it.

    The module holds what is put into it, and nothing here holds the module: what compiles it is
    given it at each call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, _context(model.__dict__[_IN_PLACE]))
        self._armed: Callable[[], Any] = lambda: None  # what is put into the module

    def compiled(self, wrap: Wrap) -> Callable[..., Any]:
        return method_of(self._model, self.again(type(self._alive())._call_impl, wrap))

    def arm(self, around: Around) -> None:
        model = self._alive()
        own = model.__dict__[_IN_PLACE]

        def through(call: Call, *args: Any, **kwargs: Any) -> Any:
            return around(call, args, kwargs)

        armed: Any = chained(own, [through])
        armed.own = own
        self._armed = weakref.ref(armed)
        model.__dict__[_IN_PLACE] = armed

    def remove(self) -> None:
        model, armed = self._model(), self._armed()
        if model is None or armed is None:
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


def pieces_of(model: nn.Module) -> Pieces | None:
    """Returns where the calls of the compiled parts of a model go. None if there are none, if one
    is not a module (a compiled `forward`), or if this torch cannot keep code apart. Raises
    RepriseError if this torch does not tell how they were compiled."""
    if not ISOLATES.there():
        return None
    modules = dict(model.named_modules())
    parts = [site_of(modules[name]) for name in compiled_parts(model)]
    found = [part for part in parts if part is not None]
    return Pieces(model, found) if found and len(found) == len(parts) else None


class Pieces(Site):
    """The compiled parts of one model, and the model around them."""

    is_in_pieces = True

    def __init__(self, model: nn.Module, parts: list[CompiledModule]) -> None:
        super().__init__(model)
        self._parts = parts
        # By part, what it runs; None: the program's own code.
        self._now: list[Callable[..., Any]] | None = None

    @property
    def makes_graphs(self) -> bool:
        return any(part.makes_graphs for part in self._parts)

    def compiled(self, wrap: Wrap) -> Callable[..., Any]:
        shared: list[tuple[int, CompiledModule, Callable[..., Any]]] = []
        functions = []
        for number, part in enumerate(self._parts):
            kind = self.kinds.get(number, 0)
            function = next((f for k, p, f in shared if k == kind and _alike(part, p)), None)
            if function is None:
                module: Any = part.root
                function = part.again(type(module)._call_impl, wrap, isolate_recompiles=True)
                shared.append((kind, part, function))
            functions.append(function)
        return partial(self._run, functions)

    def _run(self, functions: list[Callable[..., Any]], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward of the model, its parts with these functions."""
        forward = self._forward
        assert forward is not None
        self._now = functions
        return forward.plain(*args, **kwargs)

    def arm(self, around: Around) -> None:
        super().arm(around)
        for number, part in enumerate(self._parts):
            part.arm(partial(self._call, number))

    def _call(self, number: int, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of a part."""
        module = self._parts[number].root
        self.part = number
        if self._now is None or module is None:
            return call(*args, **kwargs)
        return call.instead(self._now[number])(module, *args, **kwargs)

    def remove(self) -> None:
        self._now = None
        for part in self._parts:
            part.remove()
        super().remove()


def _alike(part: CompiledModule, other: CompiledModule) -> bool:
    """Returns whether two parts can share a compiled function."""
    return (
        type(part.root) is type(other.root)
        and part.options == other.options
        and bool(part.backend == other.backend)
    )
