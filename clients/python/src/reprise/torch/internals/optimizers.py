# SPDX-License-Identifier: Apache-2.0
"""Observes the optimizers of this process: one pair of hooks for all models; and finds the call
that ends a step.

    observe(model)      # its before_optimizer and after_optimizer are called from now on
    leave(model)        # and no longer
    remove_unused()     # takes the hooks out if no model is left
    described(optimizer)        # "AdamW(foreach=None, fused=None)"
    cycle = Cycle()
    cycle.ends(optimizer)       # after optimizer.step(): whether the step is over

torch walks through its hooks while an optimizer steps, and a model may die in the middle of that:
so `leave` keeps the hooks, and only a call of the program removes them.

With one optimizer, every call ends a step. With several (one for the embeddings, or those of a
GAN), a step ends when each of them has stepped since the last step ended. The calls themselves
show which optimizers belong to the cycle. One that no longer steps is forgotten: after many calls,
or at once if a new optimizer steps that updates the same parameters, as when a second `fit` has
made its own. If a forgotten one steps again, it is forgotten next time only after the other has
stepped twice: an inner loop may make an optimizer of its own for every step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from reprise.torch.internals import guard

_FUSED_ON = ("cpu", "cuda")
# After this many calls without an end, an optimizer of the cycle has evidently stopped stepping.
PATIENCE = 64


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
        before = guard.telling(_observers, Observer.before_optimizer.__name__)
        after = guard.telling(_observers, Observer.after_optimizer.__name__)
        _hooks.append(register_optimizer_step_pre_hook(before))
        _hooks.append(register_optimizer_step_post_hook(after))


def leave(observer: Observer) -> None:
    """Ends what `observe` began. Calling it again does nothing."""
    _observers.pop(observer, None)


def remove_unused() -> None:
    """Takes the hooks out if nobody observes."""
    while _hooks and not _observers:
        _hooks.pop().remove()


def described(optimizer: Optimizer) -> str:
    """Returns an optimizer of torch with those of its options that change what its step takes, as
    the server reads it (formats/convert/refusal.cc); "" for any other. Without `fused` where its
    parameters cannot be updated so."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return ""
    first = optimizer.param_groups[0]
    options = [name for name in ("foreach", "fused") if name in first]
    if not all(
        p.device.type in _FUSED_ON and p.is_floating_point() for p in _parameters(optimizer)
    ):
        options = [name for name in options if name != "fused"]
    said = ", ".join(f"{name}={first[name]}" for name in options)
    return f"{type(optimizer).__name__}({said})"


class Cycle:
    """Finds the end of a step from the optimizers that step for one model."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._forgotten: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._calls = 0
        # The only one that is known, once it has ended a step: until another one comes, it ends
        # every step, and nothing changes.
        self._only: Callable[[], Optimizer | None] = _none

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have stepped for this model, in no order."""
        return list(self._known)

    @property
    def is_empty(self) -> bool:
        """Whether no optimizer has stepped for this model."""
        return self._only() is None and not self._known

    def learn(self, optimizer: Optimizer) -> None:
        """Adds an optimizer that stepped outside a step, so that later steps wait for it."""
        self._known.add(optimizer)
        self._only = _none

    def replaces(self, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer is new and updates all parameters of one that is known."""
        if self._only() is optimizer:
            return False
        return optimizer not in self._known and bool(self._replaced_by([optimizer]))

    def ends(self, optimizer: Optimizer) -> bool:
        """Notes that an optimizer has stepped; returns whether the step is over."""
        if self._only() is optimizer:
            return True
        self._only = _none
        again = optimizer in self._stepped
        new = optimizer not in self._known
        self._stepped.add(optimizer)
        if again or new:
            for replaced in self._replaced_by(self._stepped):
                if again or replaced not in self._forgotten:
                    self._known.discard(replaced)
                    self._forgotten.add(replaced)
        self._known.add(optimizer)
        self._calls += 1
        if self._calls >= PATIENCE:
            self._known = weakref.WeakSet(self._stepped)
        over = len(self._stepped) >= len(self._known)
        if over:
            self.restart()
            if len(self._known) == 1:
                self._only = weakref.ref(optimizer)
        return over

    def _replaced_by(self, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
        """Returns the known optimizers that have not stepped and whose parameters all belong to
        these."""
        moved = {id(p) for optimizer in optimizers for p in _parameters(optimizer)}
        waiting = [o for o in self._known if o not in self._stepped]
        return [o for o in waiting if all(id(p) in moved for p in _parameters(o))]

    def restart(self) -> None:
        """Starts a new step: forgets which optimizers have stepped."""
        if self._calls:
            self._stepped.clear()
            self._calls = 0


def _none() -> None:
    """Refers to no optimizer."""


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
