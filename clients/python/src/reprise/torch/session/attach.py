# SPDX-License-Identifier: Apache-2.0
"""Finds the models of a program that does not know of Reprise, and arms them.

    attach()      # once, after torch was imported

A model to arm is a module that is called from outside any other module, with gradients on and
parameters that want them. `nn.Module.__call__` is replaced until one was armed and some optimizer
has stepped a few times since, and only between such calls: inside one everything is as it was, for
whoever traces it. A hook would come too late, since torch looks up `forward` before it calls hooks,
and the first step of a job that does not fit must not run plainly. A model inside
DistributedDataParallel is armed itself: the wrapper communicates, the module computes. Models of
Keras that `fit` trains are left to reprise.keras. Where optimizers step and no such model is
called, that is said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook

from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.torch.internals import calls, guard
from reprise.torch.internals.distributed import unwrapped

# Calls of optimizers after the first model was armed, after which every model has been seen.
STEPS = 3
# Calls of optimizers without any: what is trained is not called in a way that is seen here.
UNSEEN = 8


def attach() -> None:
    """Starts to watch. In a program that arms its models itself, those stay as they are."""
    if os.environ.get("REPRISE_DISABLE") != "1":
        _Watch()


class _Watch:
    def __init__(self) -> None:
        self._steps = self._unseen = 0
        self._armed = False
        self._pid = os.getpid()
        self._plain = modules.Module.__call__
        self._watching = calls.chained(self._plain, [self._called])
        self._put(self._watching)
        guard.listen(self._broke)
        register_optimizer_step_post_hook(guard.quiet(self._stepped))

    def _called(
        self, plain: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        self._put(self._plain)
        try:
            self._enter(module, args, kwargs)
            return plain(module, *args, **kwargs)
        finally:
            if self._steps < STEPS:
                self._put(self._watching)

    @staticmethod
    def _put(call: Callable[..., Any]) -> None:
        modules.Module.__call__ = call  # type: ignore[method-assign]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            if os.environ.get("REPRISE_FIT_TO") and self._is_root(module):
                from reprise.torch.session import fit_asked

                fit_asked.answer(unwrapped(module), inputs, named)
            if _is_of_keras(module, inputs):
                from reprise.torch.training import armed

                self._armed = self._armed or armed.current(module) is not None
            elif self._is_root(module):
                self._armed = True
                self._arm(unwrapped(module))
        except RepriseError as error:
            say(f"training without Reprise: {error}")
            self._over()

    def _over(self) -> None:
        self._steps = STEPS
        modules.Module.__call__ = self._plain  # type: ignore[method-assign]

    def _broke(self, error: Exception) -> bool:
        """Arms nothing more, after an internal error."""
        self._over()
        return False

    def _stepped(self, *_: Any) -> None:
        # torch is walking through its optimizer hooks: this one stays, and does nothing more.
        if not self._armed:
            self._unseen += 1
            if self._unseen == UNSEEN and os.getpid() == self._pid:
                say(
                    f"no plan: an optimizer has stepped {UNSEEN} times, and no model in training "
                    "mode was called with gradients as model(inputs). model.forward(inputs) and "
                    "tensors without a module are not seen. Call reprise.auto(model) before the "
                    "training"
                )
            return
        self._steps += 1
        if self._steps == STEPS:
            self._put(self._plain)

    def _is_root(self, module: nn.Module) -> bool:
        return (
            module.training
            and torch.is_grad_enabled()
            and os.getpid() == self._pid
            and not torch.compiler.is_compiling()
            # What a backward runs again is a part of what it goes back through.
            and torch._C._current_graph_task_id() == -1
            and any(p.requires_grad for p in module.parameters())
            and not (self._armed and _forward_runs())
        )

    @staticmethod
    def _arm(module: nn.Module) -> None:
        from reprise.torch.job.stages import stages_around
        from reprise.torch.session import api
        from reprise.torch.training import armed

        # One that could not be armed was told why, and is not tried at each of its calls.
        if armed.current(module) is None and module not in armed.unarmed:
            stages = [unwrapped(stage) for stage in stages_around()]
            together = len(stages) > 1 and module in stages
            api.auto(stages if together else module, budget=None)
            loop = armed.current(module)
            if loop is not None:
                loop.attached = True


def _forward_runs() -> bool:
    """Returns whether a forward of an armed model is running. Its outermost call is not seen here
    if Reprise runs the forward again."""
    from reprise.torch.training.loop import forward_runs

    return forward_runs()


def _is_of_keras(module: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Returns whether Keras calls a module: a layer, a model that `fit` trains, which
    reprise.keras arms, or a model on symbols, while another one is built of it."""
    keras = sys.modules.get("keras")
    layer, model = getattr(keras, "Layer", None), getattr(keras, "Model", None)
    if layer is None or model is None or not isinstance(module, layer):
        return False
    real = any(isinstance(x, torch.Tensor) and not x.is_meta for x in inputs)
    return not (isinstance(module, model) and real) or bool(getattr(module, "compiled", False))
