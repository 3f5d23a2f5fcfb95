# SPDX-License-Identifier: Apache-2.0
"""Which call of an optimizer ends a step.

    cycle = Cycle()
    cycle.ends(optimizer)       # after optimizer.step(): is the step over?

One optimizer: every call. Several (one for the embeddings, or those of a GAN): a step is one cycle
of them, over when each has stepped since the last one ended. Who belongs to the cycle is learned
from the calls themselves. One that no longer steps is forgotten: after many calls, or at once where
another one steps that is new and moves the same parameters, as when a second `fit` has made its
own. One that has come back after that is only forgotten once the other one has stepped twice: an
inner loop may make an optimizer of its own for every step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Cycle"]

# So many calls without an end: somebody in the cycle has stopped stepping.
PATIENCE = 64


class Cycle:
    """Finds the end of a step from the optimizers of one model."""

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
        """Notes an optimizer that stepped outside a step: from now on it belongs to one."""
        self._known.add(optimizer)

    def replaces(self, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer is new and updates all parameters of another one."""
        return optimizer not in self._known and bool(self._replaced_by([optimizer]))

    def ends(self, optimizer: Optimizer) -> bool:
        """Notes that an optimizer has stepped; returns whether that ends the step."""
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
        """Returns optimizers that have not stepped and whose parameters these update."""
        moved = {id(p) for optimizer in optimizers for p in _parameters(optimizer)}
        waiting = [o for o in self._known if o not in self._stepped]
        return [o for o in waiting if all(id(p) in moved for p in _parameters(o))]

    def restart(self) -> None:
        """Forgets which optimizers have stepped, because a new step begins."""
        self._stepped.clear()
        self._calls = 0


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
