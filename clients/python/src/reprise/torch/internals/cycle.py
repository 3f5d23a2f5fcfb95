# SPDX-License-Identifier: Apache-2.0
"""Which call of an optimizer ends a step.

    cycle = Cycle()
    cycle.ends(optimizer)       # after optimizer.step(): whether the step is over

With one optimizer, every call ends a step. With several (one for the embeddings, or those of a
GAN), a step ends when each of them has stepped since the last step ended. The calls themselves
show which optimizers belong to the cycle. One that no longer steps is forgotten: after many calls,
or at once if a new optimizer steps that updates the same parameters, as when a second `fit` has
made its own. If a forgotten one steps again, it is forgotten next time only after the other has
stepped twice: an inner loop may make an optimizer of its own for every step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Cycle"]

# After this many calls without an end, an optimizer of the cycle has evidently stopped stepping.
PATIENCE = 64


class Cycle:
    """Finds the end of a step from the optimizers that step for one model."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._forgotten: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._calls = 0

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have stepped for this model, in no order."""
        return list(self._known)

    def learn(self, optimizer: Optimizer) -> None:
        """Adds an optimizer that stepped outside a step, so that later steps wait for it."""
        self._known.add(optimizer)

    def replaces(self, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer is new and updates all parameters of one that is known."""
        return optimizer not in self._known and bool(self._replaced_by([optimizer]))

    def ends(self, optimizer: Optimizer) -> bool:
        """Notes that an optimizer has stepped; returns whether the step is over."""
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
        return over

    def _replaced_by(self, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
        """Returns the known optimizers that have not stepped and whose parameters all belong to
        these."""
        moved = {id(p) for optimizer in optimizers for p in _parameters(optimizer)}
        waiting = [o for o in self._known if o not in self._stepped]
        return [o for o in waiting if all(id(p) in moved for p in _parameters(o))]

    def restart(self) -> None:
        """Starts a new step: forgets which optimizers have stepped."""
        self._stepped.clear()
        self._calls = 0


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yields the parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]
