# SPDX-License-Identifier: Apache-2.0
"""The training step of a model on JAX: Keras' stateless step, planned by `reprise.jax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

import reprise.jax
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.keras.step import Step, StepReports
from reprise.plan.result import Result

UNCHECKED = "Keras on JAX compares no gradients, and XLA's bytes of the program are the peak"


class JaxStep(Step):
    """A planned step of one model. Weights, statistics and seeds go in and come out as values."""

    def __init__(self, *asked: Any) -> None:
        if keras.distribution.distribution() is not None:
            raise RepriseError("auto: models under keras.distribution are not planned yet")
        super().__init__(*asked)
        # Of the first batch since the step was made; None before it.
        self._found: reprise.jax.Found | None = None
        self._reports = StepReports(UNCHECKED)

    def report(self) -> Result | None:
        """Returns what is known of the plan for the first batch; None before the first step."""
        return None if self._found is None else self._found.known(None)

    def _made(self) -> Callable[..., Any]:
        model = self._model
        self._found = None
        planned = reprise.jax.auto(model.train_step, donate_argnums=0, **self._how)
        plain: Callable[..., Any] | None = None

        def step(state: Any, data: Any) -> Any:
            nonlocal plain
            if plain is not None:
                self._reports.step(None)
                return plain(state, data)
            try:
                made = planned(state, data)
            except Exception as error:
                # Donated values that are gone say that the step has run: the error is its own.
                leaves = keras.tree.flatten(state)
                gone = any(hasattr(x, "is_deleted") and x.is_deleted() for x in leaves)
                if self._how["on_infeasible"] == "raise" or gone:
                    raise
                say(f"No plan: {str(error).rstrip('.')}. Training continues without a plan.")
                plain = planned.unplanned if model.jit_compile else model.train_step
                return plain(state, data)
            if self._found is None and planned.found is not None:
                # The last batch of an epoch may be smaller: the budget is that of the first one.
                self._found, planned.budget = planned.found, planned.found.budget_bytes
            self._reports.step(planned.found.plan if planned.found else None)
            return made

        return model._make_function(step)  # type: ignore[no-any-return]
