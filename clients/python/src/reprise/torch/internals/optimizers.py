# SPDX-License-Identifier: Apache-2.0
"""Observes the optimizers of this process: one pair of hooks for all models.

    observe(model)      # its before_optimizer and after_optimizer are called from now on
    leave(model)        # and no longer
    remove_unused()     # takes the hooks out if no model is left

torch walks through its hooks while an optimizer steps, and a model may die in the middle of that:
so `leave` keeps the hooks, and only a call of the program removes them.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from reprise.torch.internals import guard

__all__ = ["leave", "observe", "remove_unused"]


class Observer(Protocol):
    """A model that is trained."""

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer of the process is about to step."""

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer of the process has stepped."""


_observers: dict[Observer, None] = {}
_hooks: list[Any] = []


def observe(observer: Observer) -> None:
    """Tells `observer` of every step of an optimizer from now on."""
    _observers[observer] = None
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(guard.quiet(_before)))
        _hooks.append(register_optimizer_step_post_hook(guard.quiet(_after)))


def leave(observer: Observer) -> None:
    """Ends what `observe` began. Calling it again does nothing."""
    _observers.pop(observer, None)


def remove_unused() -> None:
    """Takes the hooks out if nobody observes."""
    while _hooks and not _observers:
        _hooks.pop().remove()


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for observer in tuple(_observers):
        guard.quietly(observer.before_optimizer, optimizer)


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for observer in tuple(_observers):
        guard.quietly(observer.after_optimizer, optimizer)
