# SPDX-License-Identifier: Apache-2.0
"""The training step of a model on TensorFlow: Keras' step, whose trace `reprise.tensorflow`
rewrites."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

import reprise.tensorflow
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.keras.step import Step, StepReports
from reprise.plan import Plan
from reprise.plan.result import Known, Result


class TensorFlowStep(Step):
    def __init__(self, *asked: Any) -> None:
        super().__init__(*asked)
        self._reports = StepReports("")
        self._train: Any = None
        # What the newest reported step ran under.
        self._reported: Any = None
        self.planned: reprise.tensorflow.PlannedFunction | None = None

    def replaced(self) -> dict[str, Any]:
        """Returns the methods of the model that are the step's."""
        return {**super().replaced(), "_maybe_symbolic_build": self._maybe_symbolic_build}

    def report(self) -> Result | None:
        """Returns what is known of the newest plan; None before the first step."""
        return None if self.planned is None else self.planned.reprise_report()

    def measure(self) -> Known:
        """Runs the newest planned step once more, outside of `fit`, and returns its measured peak.
        Raises RepriseError if there is none."""
        if self.planned is None or self.planned.applied is None:
            raise RepriseError("measure: no step has run under a plan yet; call fit before")
        return self.planned.measure()

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Sees the data of `fit` first. A dataset leaves the size of a batch open."""
        if iterator is not None:
            self._batch = iterator.data_adapter.batch_size
        elif data_batch is not None:
            self._batch = int(keras.tree.flatten(data_batch)[0].shape[0])
        type(self._model)._maybe_symbolic_build(self._model, iterator, data_batch)

    def _made(self) -> Callable[..., Any]:
        model = self._model
        self.planned = reprise.tensorflow.auto(model.train_step, batch=self._batch, **self._how)
        # XLA orders and merges ops as it likes: no plan holds in it.
        with self._uncompiled():
            self._train = model._make_function(self.planned)
        return self._run

    def _run(self, iterator: Any) -> Any:
        """Runs a step of `fit`. Tracing wraps a refusal in an exception of its own: raises the
        first."""
        assert self.planned is not None
        started = time.perf_counter_ns()
        try:
            made = self._train(iterator)
        except Exception:
            if self.planned.error is not None:
                raise self.planned.error from None
            raise
        # A step has ended when its call returns on CPUs alone.
        waits = not keras.distribution.list_devices("gpu")
        took = time.perf_counter_ns() - started if waits else 0
        applied = self.planned.applied
        plan = applied.plan if applied else None
        if applied is None or plan is None or applied is self._reported:
            self._reports.step(plan, took)
        else:
            # Its own time is that of tracing, too, and is left out.
            self._reports.step(plan, 0, applied.peak_bytes, applied.peak_bytes)
            self._compare(plan)
        self._reported = applied
        return made

    def _compare(self, plan: Plan) -> None:
        """Compares what the first step under a plan computes with the step as it was written,
        beside `fit`. Never raises."""
        assert self.planned is not None
        try:
            compared = self.planned.check_as(self._reports.newest)
            if not compared.bits:
                say(compared.sentence)
        except Exception as error:
            # Without what TensorFlow adds of the place.
            first = (str(error).strip().splitlines() or [""])[0][:200]
            why = (
                "the planned step could not be compared beside fit "
                f"({type(error).__name__}: {first})"
            )
            say(why)
            self._reports.unchecked(plan, why)
