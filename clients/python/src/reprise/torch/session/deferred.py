# SPDX-License-Identifier: Apache-2.0
"""Models that are armed before their parameters have memory.

    if on_meta(models):
        defer(models, begin)        # begin(models) is called later

A large model is often made on the meta device, divided among the ranks, and only then given memory
(`to_empty`, or a checkpoint that is loaded). Which device it trains on is not known before. So its
training loop begins in its first forward in which all of its parameters have memory, before that
forward runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from reprise.torch.internals.calls import Call
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.training import armed

_WHY = "its parameters are on the meta device: it is planned once it trains with memory for them"


def on_meta(models: list[nn.Module]) -> bool:
    """Returns whether a parameter or buffer of one of the models is on the meta device."""
    return any(t.is_meta for model in models for t in (*model.parameters(), *model.buffers()))


def defer(models: list[nn.Module], begin: Callable[[list[nn.Module]], None]) -> None:
    """Calls `begin` with the models as soon as one of them is called and none is on the meta device
    any more. `armed.cancel` of a model ends that; so does another call for the same model."""
    for model in models:
        armed.cancel(model)
    waiting = _Deferred(models, begin)
    for model in models:
        armed.deferred[model] = waiting
        armed.unarmed[model] = _WHY


class _Deferred:
    def __init__(self, models: list[nn.Module], begin: Callable[[list[nn.Module]], None]) -> None:
        self._models = [weakref.ref(model) for model in models]
        self._begin = begin
        self._forwards = [
            ArmedForward(model, partial(self._around, weakref.ref(model))) for model in models
        ]

    def remove(self) -> None:
        """Restores the models. Safe to call twice."""
        for forward in self._forwards:
            forward.remove()

    def _around(
        self,
        called: weakref.ref[nn.Module],
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        models = [model for known in self._models if (model := known()) is not None]
        model = called()
        if model is not None and not on_meta(models):
            for one in models:
                armed.cancel(one)  # and remove() with it
            self._begin(models)
            call.do = model.forward  # the training loop's, if one has begun
        return call(*args, **kwargs)
