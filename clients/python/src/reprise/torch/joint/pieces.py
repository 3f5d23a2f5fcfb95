# SPDX-License-Identifier: Apache-2.0
"""Models whose modules are compiled one by one, and which run eagerly between them.

    site = pieces_of(model)          # None: no part of it is compiled, or one in another way
    again = site.compiled(wrap)      # the model with its parts compiled once more
    site.arm(around)
    site.remove()

`again(x)` runs the forward of the model as it is; each compiled part runs code of Reprise's in the
place of the program's own. That code stays in place until the next forward, because checkpoints
around a part call it once more in the backward.

Parts of one class and one kind that are compiled in the same way share one compiled function. What
runs again is one decision for all of them (whole.py), so a plan that treats equal blocks in two
ways has two kinds of them. A function keeps its compiled code
apart from the program's (`isolate_recompiles`), so that neither counts against the other's limit
of recompilations, past which code with `fullgraph=True` raises. A torch without that: no pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from reprise.torch.internals.calls import Call
from reprise.torch.internals.contracts import ISOLATES
from reprise.torch.internals.dynamo import compiled_parts
from reprise.torch.joint.site import Around, CompiledModule, Site, Wrap, site_of


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

    def compiled(self, wrap: Wrap) -> Callable[..., Any]:
        shared: list[tuple[int, CompiledModule, Callable[..., Any]]] = []
        functions = []
        for number, part in enumerate(self._parts):
            kind = self.kinds.get(number, 0)
            function = next((f for k, p, f in shared if k == kind and _alike(part, p)), None)
            if function is None:
                options: dict[str, Any] = {**part.options, "isolate_recompiles": True}
                backend = wrap(part.backend)
                module: Any = part.root
                call = type(module)._call_impl
                function = torch.compile(call, backend=backend, **options)
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
