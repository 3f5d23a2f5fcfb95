# SPDX-License-Identifier: Apache-2.0
"""Takes the place of one module's `forward` and gives it back.

    armed = ArmedForward(model, around)      # model.forward(...) now runs inside around(...)
    armed.plain(x)                           # the forward as it was
    armed.remove()

Nothing else of the module changes: no wrapper module, the same class, names and state_dict. What
stands in `forward` looks like the method whose place it takes, for who inspects it, scripts it,
exports it or calls its function with another module. It stays in this object: a copy, a pickle or a
file of the module is plain, and needs no Reprise to be loaded.
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

# What stands in the `__dict__` of an armed module. Pickling and copying ask the object itself for
# the second one.
_FORWARD, _REDUCE = "forward", "__reduce_ex__"


class ArmedForward:
    """Takes the place of one module's forward until `remove`; its calls go to `around`."""

    def __init__(self, model: nn.Module, around: Around) -> None:
        self._model = weakref.ref(model)
        own = vars(model)
        self._before = {name: own[name] for name in (_FORWARD, _REDUCE) if name in own}
        method = stand_ins.Method(model, self._before.get(_FORWARD), around)
        self.plain = method.plain  # the forward as it was
        reduce = stand_ins.Reduce(model, self._before.get(_REDUCE), self._without)
        self._standing = {_FORWARD: method, _REDUCE: reduce}
        own.update(self._standing)

    def remove(self) -> None:
        """The module is as it was. Idempotent."""
        model = self._model()
        if model is not None:
            own = vars(model)
            stays = self._without(own)
            own.clear()
            own.update(stays)

    def _without(self, state: dict[str, Any]) -> dict[str, Any]:
        """What stands in a module's `__dict__`, as it would without us."""
        found = {}
        for name, value in state.items():
            if value is not self._standing.get(name, self):
                found[name] = value
            elif name in self._before:
                found[name] = self._before[name]
        return found
