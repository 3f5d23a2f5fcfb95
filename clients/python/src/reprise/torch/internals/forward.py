# SPDX-License-Identifier: Apache-2.0
"""Replaces one module's `forward` and restores it.

    armed = ArmedForward(model, around)      # model.forward(...) now runs inside around(...)
    armed.plain(x)                           # the original forward
    armed.stay()                             # its calls come here, whatever the program put there
    armed.remove()

Nothing else of the module changes: there is no wrapper module, and class, names and state_dict stay
the same. The replacement looks like the original method to code that inspects it, scripts it,
exports it or calls its function with another module. It belongs to this object only: a copy, a
pickle or a file of the module has the original forward, and needs no Reprise to be loaded.

A program may put something else there after that: a forward under autocast, made of the function
that `forward.__func__` is, would never come to the replacement. So each call of the module looks
first, and replaces what it finds. It makes no difference whether a model is armed before its
forward is wrapped or after it: all that the program calls its forward runs inside `around`, once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from reprise.torch.internals import stand_ins
from reprise.torch.internals.calls import Call
from reprise.torch.internals.dynamo import is_compiled

Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]

# What we put into the `__dict__` of an armed module. Pickling and copying look up the last name on
# the object itself.
_FORWARD, _CALL, _REDUCE = "forward", "_call_impl", "__reduce_ex__"


def _is_graphed(function: Any) -> bool:
    """Returns whether a forward comes from `torch.cuda.make_graphed_callables`."""
    return getattr(function, "__module__", "") == "torch.cuda.graphs"


class ArmedForward:
    """Replaces one module's forward until `remove`; its calls go to `around`."""

    def __init__(self, model: nn.Module, around: Around) -> None:
        self._model = weakref.ref(model)
        self._around = around
        self._removed = False
        own = vars(model)
        self._before = {name: own[name] for name in (_FORWARD, _CALL, _REDUCE) if name in own}
        self._method = stand_ins.Forward(model, own.get(_FORWARD), around)
        self._standing: dict[str, Any] = {_FORWARD: self._method}
        self._standing[_CALL] = stand_ins.Caller(model, own.get(_CALL), self.stay, self._standing)
        self._standing[_REDUCE] = stand_ins.Reduce(model, own.get(_REDUCE), self._without)
        own.update(self._standing)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the original forward: the one of the class, or what the program has put there."""
        return self._method.plain(*args, **kwargs)

    def remove(self) -> None:
        """Restores the module. Safe to call twice."""
        self._removed = True
        stand_ins.leave(self._method)
        model = self._model()
        if model is not None:
            own = vars(model)
            stays = self._without(own)
            own.clear()
            own.update(stays)

    def stay(self) -> None:
        """Replaces the forward again if the program has put another one there. One that is compiled
        stays: code that is compiled is planned in another way, or not. So does one that replays a
        CUDA graph, which was planned when it was captured."""
        model = self._model()
        if model is None or self._removed:
            return
        own = vars(model)
        found = own.get(_FORWARD)
        # Where a module is armed twice, this one is inside the other.
        if stand_ins.reaches(found, self._method) or is_compiled(found) or _is_graphed(found):
            return
        # What the program has made of the old replacement may call it.
        stand_ins.leave(self._method)
        found = stand_ins.of_the_program(found)
        self._before.pop(_FORWARD, None)
        if found is not None:
            self._before[_FORWARD] = found
        self._method = stand_ins.Forward(model, found, self._around)
        self._standing[_FORWARD] = own[_FORWARD] = self._method

    def _without(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns a module's `__dict__` as it would be without us."""
        found = {}
        for name, value in state.items():
            if value is not self._standing.get(name, self):
                found[name] = value
            elif (before := stand_ins.of_the_program(self._before.get(name))) is not None:
                found[name] = before
        return found
