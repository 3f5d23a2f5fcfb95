# SPDX-License-Identifier: Apache-2.0
"""The training step of a model on torch: Keras' own step, whose model `reprise.auto` has armed.

`reprise.torch` watches the model's forward and knows the end of a step by a call of an optimizer of
`torch.optim`. Keras has optimizers of its own, so while a step runs, the update of the model's
optimizer is called through one of `torch.optim` that does nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.keras.functional_graph import let_go_early, undo
from reprise.keras.step import Step
from reprise.plan.wish import no_plan
from reprise.torch.session import api

_APPLY = "apply"

# Keras puts what a sigmoid or a softmax has read on its result, where only losses on TensorFlow
# look for it. Autograd, which keeps the result, kept that as well.
_LOGITS = "_keras_logits"


class _Update(torch.optim.Optimizer):
    """Keras' update of the weights, as a step of `torch.optim`."""

    def __init__(self, model: Any) -> None:
        super().__init__([v.value for v in model.trainable_variables], {})

    def step(self, apply: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return apply(*args, **kwargs)

    def name_state(self, optimizer: Any) -> None:
        """Enters the variables of Keras' optimizer as the state of this one, so that they are
        named in reports of memory."""
        first = self.param_groups[0]["params"][0]
        self.state[first] = {v.path: v.value for v in optimizer.variables}


class TorchStep(Step):
    def __init__(self, *asked: Any) -> None:
        super().__init__(*asked)
        self._how.pop("time_limit_s", None)
        # None before the first step: Keras builds a model on its first batch.
        self._update: _Update | None = None

    def report(self) -> Any:
        """Returns what is known of the newest plan; None before the first step."""
        return None if self._update is None else api.report(self._model)

    def close(self) -> None:
        """Takes everything out of the model again."""
        if self._update is not None:
            api.remove(self._model)
            undo(self._model)
            self._update = None

    def _made(self) -> Callable[..., Any]:
        # A compiled step has its backward inside, where no plan can be applied.
        with self._uncompiled():
            type(self._model).make_train_function(self._model, force=True)
        plain = self._model.train_function

        def run(data: Any) -> Any:
            with self._updates():
                return plain(data)

        return run

    @contextmanager
    def _updates(self) -> Iterator[None]:
        """Calls the optimizer of the model through one of `torch.optim` inside the context."""
        model, optimizer = self._model, self._model.optimizer
        if self._update is None:
            let_go_early(model)
            # Only cycles hold a model that the program has let go of, and steps would count it.
            gc.collect()
            try:
                api.auto(model, **self._how)
            except RepriseError as error:
                say(no_plan(error))
            self._update = _Update(model)
        update = self._update

        def apply(*args: Any, **kwargs: Any) -> Any:
            made = update.step(type(optimizer).apply.__get__(optimizer), *args, **kwargs)
            update.name_state(optimizer)
            return made

        # Not by the optimizer's own way, which looks for variables in what it is given.
        object.__setattr__(optimizer, _APPLY, apply)
        is_outer = not hasattr(torch.Tensor, _LOGITS)  # a step may train another model
        if is_outer:
            setattr(torch.Tensor, _LOGITS, property(None, lambda tensor, logits: None))
        try:
            yield
        finally:
            vars(optimizer).pop(_APPLY, None)
            if is_outer:
                delattr(torch.Tensor, _LOGITS)
