# SPDX-License-Identifier: Apache-2.0
"""Which call of an optimizer ends a step.

    cycle = Cycle()
    cycle.ends(optimizer)       # after optimizer.step(): is the step over?

One optimizer: every call. Several (one for the embeddings, or those of a GAN): a step is one cycle
of them, over when each has stepped since the last one ended. Who belongs to the cycle is learned
from the calls themselves. One that no longer steps is forgotten: after many calls, or at once where
another one steps twice that moves the same parameters, as when a second `fit` has made its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Cycle"]

# So many calls without an end: somebody in the cycle has stopped stepping.
PATIENCE = 64


class Cycle:
    """The optimizers of one model."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._calls = 0

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have stepped for this model, in no order."""
        return list(self._known)

    def learn(self, optimizer: Optimizer) -> None:
        """It stepped although no step was under way: from now on it belongs to one."""
        self._known.add(optimizer)

    def ends(self, optimizer: Optimizer) -> bool:
        """An optimizer has stepped."""
        if optimizer in self._stepped:
            self._forget_replaced()
        self._known.add(optimizer)
        self._stepped.add(optimizer)
        self._calls += 1
        if self._calls >= PATIENCE:
            self._known = weakref.WeakSet(self._stepped)
        over = len(self._stepped) >= len(self._known)
        if over:
            self.restart()
        return over

    def _forget_replaced(self) -> None:
        """Those whose parameters are all moved by others that have stepped."""
        moved = {id(p) for optimizer in self._stepped for p in _parameters(optimizer)}
        for optimizer in [o for o in self._known if o not in self._stepped]:
            if all(id(p) in moved for p in _parameters(optimizer)):
                self._known.discard(optimizer)

    def restart(self) -> None:
        """A step begins."""
        self._stepped.clear()
        self._calls = 0


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
