# SPDX-License-Identifier: Apache-2.0
"""What `fit` calls, replaced by a planned step, and put back.

Keras makes the function of a training step in `make_train_function`, anew after every `compile`.
An armed model has one of its own. Layers, weights, saving and loading know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import keras

from reprise.base.errors import RepriseError
from reprise.plan.result import Known, Result
from reprise.plan.wish import Wish, is_disabled

_STEP = "_reprise_step"


def auto(
    model: Any,
    budget: str | int,
    *,
    time_limit_s: float | None = None,
    batch: int | None = None,
    on_infeasible: str = "plain",
    max_overhead: float | None = None,
    name: str | None = None,
) -> Any:
    """Arms a compiled model and returns it: `fit` and `train_on_batch` train within `budget`
    ("0.5x", "2GiB", bytes). A second call replaces the first one's budget.
    `batch` is the size to plan for on TensorFlow if the data of `fit` does not say it.
    `time_limit_s` is how long to search for a plan on JAX and TensorFlow; on torch, the effort is
    fixed. `name` is that of the run; without it, the model's. REPRISE_BUDGET replaces the budget,
    REPRISE_DISABLE=1 leaves the model as it is.

    Where no plan fits, or the fitting one takes more than `max_overhead` (0.3: 30 % more time), the
    model trains without a plan, and a line says why. On JAX and TensorFlow, the first step raises
    `InfeasibleBudget` with `on_infeasible="raise"`, and is planned within the smallest budget with
    a known plan with "nearest".

    Raises `RepriseError` if it is no model of Keras, was not compiled, or runs eagerly, or if Keras
    runs on another backend."""
    if not is_disabled():
        arm(model, Wish.of(budget, on_infeasible, max_overhead, time_limit_s), batch, name)
    return model


def arm(model: Any, wish: Wish | None, batch: int | None = None, name: str | None = None) -> None:
    """Arms a model as `auto` does. Without a wish, which is for torch alone, nothing is planned,
    and one step is captured for the run's page."""
    backend = keras.backend.backend()
    _check(model, backend)
    step = _step_class(backend)(model, wish, batch, name or model.name)
    remove(model)
    for key, value in {_STEP: step, **step.replaced()}.items():
        # Not by the model's own way, which looks for layers and weights in what it is given.
        object.__setattr__(model, key, value)
    model.train_function = None


def is_armed(model: Any) -> bool:
    """Returns whether `auto`, or `reprise run`, has armed a model."""
    return _STEP in vars(model)


def remove(model: Any) -> None:
    """Undoes `auto`: the model trains as before. Nothing happens where it was not armed."""
    step = vars(model).get(_STEP)
    if step is None:
        return
    for name in (_STEP, *step.replaced()):
        vars(model).pop(name, None)
    step.close()
    model.train_function = None


def report(model: Any) -> Result:
    """Returns the newest plan of an armed model, and what was measured under it."""
    step = vars(model).get(_STEP)
    if step is None:
        raise RepriseError("report: the model is not armed; reprise.keras.auto(model, budget=...)")
    return step.report() or Known("No step has run yet.")


def measure(model: Any) -> Result:
    """Returns what is known of the newest plan of an armed model on TensorFlow, measured anew: its
    step, as it was rewritten, runs once more, on variables and a batch of its own, in a session
    that records its allocations. Weights and optimizer of the model stay as they are.

    Raises `RepriseError` if no step has run under a plan. Elsewhere `report` has the figures: on
    JAX those of XLA, on torch the peak of every step."""
    step = vars(model).get(_STEP)
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RepriseError(
            f"measure: is for TensorFlow, and Keras runs on {backend}; reprise.keras.report(model) "
            "has the bytes there"
        )
    if step is None:
        raise RepriseError("measure: the model is not armed; reprise.keras.auto(model, budget=...)")
    return step.measure()  # type: ignore[no-any-return]


def _check(model: Any, backend: str) -> None:
    if not isinstance(model, keras.Model):
        raise RepriseError(f"auto: must be a model of Keras, got {model!r}"[:120])
    if not model.compiled:
        raise RepriseError("auto: the model is not compiled; call it between compile() and fit()")
    # On torch a step is eager either way.
    if model.run_eagerly and backend != "torch":
        raise RepriseError("auto: the model runs eagerly; a plan needs compile(run_eagerly=False)")


def _step_class(backend: str) -> Callable[..., Any]:
    name = {"jax": "JaxStep", "tensorflow": "TensorFlowStep", "torch": "TorchStep"}.get(backend)
    if name is None:
        raise RepriseError(f"auto: Keras runs on {backend}; jax, tensorflow and torch are planned")
    return getattr(import_module(f"reprise.keras.{backend}_step"), name)  # type: ignore[no-any-return]


class Budget(keras.callbacks.Callback):  # type: ignore[misc]
    """Trains within a budget, as `auto` does, for the time of one `fit`."""

    def __init__(self, budget: str | int, **how: Any) -> None:
        """Takes what `auto` takes. TensorFlow needs `batch`: a callback comes after the data."""
        super().__init__()
        # Of the newest plan; empty before the first step.
        self.sentence = ""
        self._budget, self._how = budget, how

    def set_model(self, model: Any) -> None:
        """Arms the model; Keras calls it before it makes the function of a step."""
        super().set_model(model)
        auto(model, self._budget, **self._how)

    def on_train_end(self, logs: Any = None) -> None:
        """Keeps the sentence, and disarms the model."""
        if is_armed(self.model):
            self.sentence = report(self.model).sentence
        remove(self.model)
