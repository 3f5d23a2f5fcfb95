# SPDX-License-Identifier: Apache-2.0
"""Replaces one module's `forward` and restores it.

    armed = ArmedForward(model, around)      # model.forward(...) now runs inside around(...)
    armed.plain(x)                           # the original forward
    armed.remove()

Nothing else of the module changes: there is no wrapper module, and class, names and state_dict stay
the same. The replacement looks like the original method to code that inspects it, scripts it,
exports it or calls its function with another module. It belongs to this object only: a copy, a
pickle or a file of the module has the original forward, and needs no Reprise to be loaded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from reprise.torch.internals import stand_ins
from reprise.torch.internals.calls import Call

__all__ = ["ArmedForward"]

Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]

# What we put into the `__dict__` of an armed module. Pickling and copying look up the second name
# on the object itself.
_FORWARD, _REDUCE = "forward", "__reduce_ex__"


class ArmedForward:
    """Replaces one module's forward until `remove`; its calls go to `around`."""

    def __init__(self, model: nn.Module, around: Around) -> None:
        self._model = weakref.ref(model)
        own = vars(model)
        self._before = {name: own[name] for name in (_FORWARD, _REDUCE) if name in own}
        method = stand_ins.Method(model, self._before.get(_FORWARD), around)
        self.plain = method.plain  # the original forward
        reduce = stand_ins.Reduce(model, self._before.get(_REDUCE), self._without)
        self._standing = {_FORWARD: method, _REDUCE: reduce}
        own.update(self._standing)

    def remove(self) -> None:
        """Restores the module. Safe to call twice."""
        model = self._model()
        if model is not None:
            own = vars(model)
            stays = self._without(own)
            own.clear()
            own.update(stays)

    def _without(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns a module's `__dict__` as it would be without us."""
        found = {}
        for name, value in state.items():
            if value is not self._standing.get(name, self):
                found[name] = value
            elif name in self._before:
                found[name] = self._before[name]
        return found
