# SPDX-License-Identifier: Apache-2.0
"""Observes the optimizers of this process: one pair of hooks for all models.

    observe(model)      # its before_optimizer and after_optimizer are called from now on
    leave(model)        # and no longer
    remove_unused()     # takes the hooks out if no model is left
    described(optimizer)        # "AdamW(foreach=None, fused=None)"

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

__all__ = ["described", "leave", "observe", "remove_unused"]


_FUSED_ON = ("cpu", "cuda")


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


def described(optimizer: Optimizer) -> str:
    """Returns an optimizer of torch with those of its options that change what its step takes, as
    the server reads it (formats/convert/refusal.cc); "" for any other. Without `fused` where its
    parameters cannot be updated so."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return ""
    first = optimizer.param_groups[0]
    options = [name for name in ("foreach", "fused") if name in first]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(p.device.type in _FUSED_ON and p.is_floating_point() for p in parameters):
        options = [name for name in options if name != "fused"]
    said = ", ".join(f"{name}={first[name]}" for name in options)
    return f"{type(optimizer).__name__}({said})"
