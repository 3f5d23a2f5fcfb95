# SPDX-License-Identifier: Apache-2.0
"""Several stages of a pipeline on one rank, as one model.

    whole = Stages([stage0, stage2])          # what a session takes for its model
    armed = arm(whole, around, gone)          # the forward of each stage runs inside around(...)
    stages_around()                           # those of the schedule that calls now

A step of such a rank is one graph, with the forwards of all its stages as they come, and one
budget. Planned one by one, each stage would count the activations of the others as memory that
stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from reprise.base.errors import RepriseError
from reprise.torch.internals.distributed import schedules
from reprise.torch.internals.forward import ArmedForward
from reprise.torch.internals.guard import quiet


class Stages(nn.Module):
    """A model whose parts the program calls one by one. It refers to them weakly and is never
    called itself."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        named = {str(number): stage for number, stage in enumerate(stages)}
        self.__dict__["_modules"] = weakref.WeakValueDictionary(named)

    @property
    def training(self) -> bool:
        """Whether some stage is in training mode."""
        return any(stage.training for stage in self.children())

    @training.setter
    def training(self, _: bool) -> None:
        """Does nothing: each stage has its own mode."""


class ArmedStages:
    """The replaced forwards of several stages. `gone` is called when the last of them has died."""

    def __init__(self, whole: Stages, around: Callable[..., Any], gone: Callable[[], Any]) -> None:
        self._whole = whole  # which nobody else keeps alive
        self._armed = [ArmedForward(stage, around) for stage in whole.children()]
        left = len(self._armed)

        def died() -> None:
            nonlocal left
            left -= 1
            if not left:
                gone()

        for stage in whole.children():
            weakref.finalize(stage, quiet(died)).atexit = False

    def stay(self) -> None:
        """Replaces the forwards again that the program has replaced."""
        for armed in self._armed:
            armed.stay()

    def remove(self) -> None:
        """Restores the stages. Safe to call twice."""
        for armed in self._armed:
            armed.remove()

    def plain(self, *_: Any, **__: Any) -> Any:
        """Raises RepriseError: the stages have no forward in common."""
        raise RepriseError("the stages of a pipeline have no forward in common")


def arm(
    model: nn.Module, around: Callable[..., Any], gone: Callable[[], Any]
) -> ArmedForward | ArmedStages:
    """Replaces the forward of a model, or those of several stages."""
    if isinstance(model, Stages):
        return ArmedStages(model, around, gone)
    return ArmedForward(model, around)


def stages_of(model: nn.Module) -> list[nn.Module]:
    """Returns the models that a session trains as one."""
    return list(model.children()) if isinstance(model, Stages) else [model]


def stages_around() -> list[nn.Module]:
    """Returns the stages of this rank of the pipeline schedule that is running on this thread, in
    order; empty if there is none."""
    for schedule in schedules():
        modules = [getattr(s, "submod", None) for s in getattr(schedule, "_stages", None) or ()]
        if modules and all(isinstance(module, nn.Module) for module in modules):
            return [module for module in modules if module is not None]
    return []
