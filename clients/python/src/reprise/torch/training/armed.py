# SPDX-License-Identifier: Apache-2.0
"""What trains under Reprise in this process, by model. Imports no framework.

add(model, loop)          # the model is armed, or another loop takes the place of its last one
loop = current(model)     # None: it is not armed
for loop in take(model): loop.remove()
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprise.torch.training.loop import TrainingLoop


# By model, the loops that it has had since it was armed, the current one last. A wrapper that only
# communicates stands for the model inside.
_loops: weakref.WeakKeyDictionary[Any, list[TrainingLoop]] = weakref.WeakKeyDictionary()
# Models that could not be armed, and why.
unarmed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# Models whose loop begins later: `remove()` cancels that.
deferred: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _inside(model: Any) -> Any:
    """Returns the model that a wrapper stands for; any other object itself."""
    if "torch" not in sys.modules:
        return model
    from reprise.torch.internals.distributed import unwrapped

    return unwrapped(model)


def add(model: Any, loop: TrainingLoop) -> None:
    """Makes `loop` the current one of a model."""
    _loops.setdefault(_inside(model), []).append(loop)


def cancel(model: Any) -> None:
    """Forgets why a model is not armed, and a loop of it that was to begin later."""
    unarmed.pop(model, None)
    if (later := deferred.pop(model, None)) is not None:
        later.remove()


def current(model: Any) -> TrainingLoop | None:
    """Returns the loop that trains a model, or what is planned in its place; None if it is not
    armed, or is no model."""
    loops = _loops.get(_inside(model)) if hasattr(model, "named_modules") else None
    return loops[-1] if loops else None


def with_loop(loop: TrainingLoop) -> list[Any]:
    """Returns the models that a loop trains."""
    return [model for model, loops in tuple(_loops.items()) if loop in loops]


def take(model: Any) -> list[TrainingLoop]:
    """Removes and returns the loops of a model, the current one first. One that was to begin later
    does not."""
    cancel(model)
    return _loops.pop(_inside(model), [])[::-1]
