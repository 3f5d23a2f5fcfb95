# SPDX-License-Identifier: Apache-2.0
"""What `fit` calls, replaced by a planned step, and put back.

Keras makes the function of a training step in `make_train_function`, anew after every `compile`.
An armed model has one of its own. Layers, weights, saving and loading know nothing of it.
"""

from __future__ import annotations

from typing import Any

import keras

from reprise.errors import RepriseError
from reprise.units import check_budget

__all__ = ["auto", "remove", "report"]

_MAKE = "make_train_function"
_STEP = "_reprise_step"


def auto(
    model: Any, budget: str | int, *, time_limit_s: float | None = None, batch: int | None = None
) -> Any:
    """Arms a compiled model and returns it: `fit` and `train_on_batch` train within `budget`
    ("0.5x", "2GiB", bytes). A second call replaces the first one's budget.
    `batch` is the size to plan for on TensorFlow where the data of `fit` does not say it.

    `RepriseError`: it is no model of Keras, was not compiled, or runs eagerly, or Keras runs on
    torch. The first step raises `InfeasibleBudget` where no plan fits."""
    _check(model)
    check_budget(budget)
    backend = keras.backend.backend()
    if backend == "torch":
        raise RepriseError(
            "auto: Keras on torch is not planned: its optimizers are not those of torch.optim, by "
            "which the end of a step is known; run Keras on jax or tensorflow"
        )
    if backend not in ("jax", "tensorflow"):
        raise RepriseError(f"auto: Keras runs on {backend}; jax and tensorflow are planned")
    remove(model)
    if backend == "jax":
        from reprise.keras.jax_step import JaxStep as Step
    else:
        from reprise.keras.tensorflow_step import TensorFlowStep as Step  # type: ignore[assignment]
    step = Step(model, budget, time_limit_s, batch)
    for name, value in {_STEP: step, **step.replaced()}.items():
        # Not by the model's own way, which looks for layers and weights in what it is given.
        object.__setattr__(model, name, value)
    model.train_function = None
    return model


def remove(model: Any) -> None:
    """The model trains as before. Nothing happens where it was not armed."""
    step = vars(model).get(_STEP)
    if step is None:
        return
    for name in (_STEP, *step.replaced()):
        vars(model).pop(name, None)
    model.train_function = None


def report(model: Any) -> str:
    """The newest plan of an armed model in one sentence."""
    step = vars(model).get(_STEP)
    if step is None:
        raise RepriseError("report: the model is not armed; reprise.keras.auto(model, budget=...)")
    return str(step.sentence) or "No step has run yet."


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise RepriseError(f"auto: must be a model of Keras, got {model!r}"[:120])
    if not model.compiled:
        raise RepriseError("auto: the model is not compiled; call it between compile() and fit()")
    if model.run_eagerly:
        raise RepriseError("auto: the model runs eagerly; a plan needs compile(run_eagerly=False)")
