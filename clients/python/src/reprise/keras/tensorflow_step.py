# SPDX-License-Identifier: Apache-2.0
"""The training step of a model on TensorFlow: Keras' step, whose trace `reprise.tensorflow`
rewrites."""

from __future__ import annotations

import time
from typing import Any

import keras

import reprise.tensorflow
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.keras.step_reports import StepReports
from reprise.plan import Plan

__all__ = ["TensorFlowStep"]


class TensorFlowStep:
    """A planned step of one model."""

    def __init__(
        self,
        model: Any,
        budget: str | int,
        time_limit_s: float | None,
        batch: int | None,
        attached: bool,
    ) -> None:
        self._attached = attached
        self._reports = StepReports("")
        self._model, self._budget, self._time_limit_s = model, budget, time_limit_s
        # Of the data that `fit` was given, if nothing else was said.
        self._batch = batch
        self._train: Any = None
        # What the newest reported step ran under.
        self._reported: Any = None
        # What was measured and compared of the newest plan's first step, in sentences.
        self._found: list[str] = []
        self._said = ""
        self.planned: reprise.tensorflow.PlannedFunction | None = None

    def replaced(self) -> dict[str, Any]:
        """Returns the methods of the model that are the step's."""
        return {
            "make_train_function": self._make_train_function,
            "_maybe_symbolic_build": self._maybe_symbolic_build,
        }

    @property
    def sentence(self) -> str:
        """Of the newest plan, and what its first step showed; empty before the first step."""
        applied = self.planned.applied if self.planned is not None else None
        if applied is None:
            return ""
        return " ".join([applied.sentence + ".", *self._found]) if self._found else applied.sentence

    def measure(self) -> reprise.tensorflow.Validation:
        """Runs the newest planned step once more, outside of `fit`, and returns its measured peak.
        Raises RepriseError if there is none."""
        planned = self.planned
        applied = None if planned is None else planned.applied
        if planned is None or applied is None or applied.plan is None:
            raise RepriseError("measure: no step has run under a plan yet; call fit before")
        measured = planned.rehearse().peak_bytes + applied.step.graph.static_bytes
        return reprise.tensorflow.Validation(
            applied.peak_bytes, measured, applied.plan.budget_bytes
        )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Sees the data of `fit` first. A dataset leaves the size of a batch open."""
        if iterator is not None:
            self._batch = iterator.data_adapter.batch_size
        elif data_batch is not None:
            self._batch = int(keras.tree.flatten(data_batch)[0].shape[0])
        type(self._model)._maybe_symbolic_build(self._model, iterator, data_batch)

    def close(self) -> None:
        """Does nothing: all that the step has replaced are methods of the model."""

    def _make_train_function(self, force: bool = False) -> None:
        model = self._model
        if model.train_function is not None and not force:
            return
        self.planned = reprise.tensorflow.PlannedFunction(
            model.train_step,
            self._budget,
            None,
            self._time_limit_s,
            self._batch,
            plainly=self._attached,
        )
        # XLA orders and merges ops as it likes: no plan holds in it.
        compiled, model.jit_compile = model.jit_compile, False
        try:
            self._train = model._make_function(self.planned)
            model.train_function = self._run
        finally:
            model.jit_compile = compiled

    def _run(self, iterator: Any) -> Any:
        """Runs a step of `fit`. Tracing wraps a refusal in an exception of its own: raises the
        first. An attached model trains without a plan then, and that is said."""
        assert self.planned is not None
        started = time.perf_counter_ns()
        try:
            made = self._train(iterator)
        except Exception:
            refusal = self.planned.refusal
            if refusal is not None:
                raise refusal from None
            raise
        took = time.perf_counter_ns() - started if self.planned.is_awaited else 0
        self._tell(took)
        return made

    def _tell(self, took_ns: int) -> None:
        """Reports the step that has run, and says once why it had no plan. The first step of every
        plan is measured and compared once more, beside `fit`, where that leaves a record."""
        assert self.planned is not None
        applied, refusal = self.planned.applied, self.planned.refusal
        if refusal is not None and str(refusal) != self._said:
            self._said = str(refusal)
            say(f"training without a plan: {refusal}")
        plan = None if applied is None else applied.plan
        if applied is self._reported or plan is None:
            self._reports.step(plan, took_ns)
        else:
            self._try(plan)
        self._reported = applied

    def _try(self, plan: Plan) -> None:
        """Reports the first step under a plan, with its peak and with a comparison of what it
        computes. Its own time is that of tracing, too, and is left out. Never raises."""
        assert self.planned is not None
        measured, predicted, why = 0, 0, ""
        self._found = []
        try:
            found = self.measure()
            self._found.append(found.sentence)
            measured, predicted = found.measured_peak_bytes, found.predicted_peak_bytes
            if not found.within:
                say(found.sentence)
        except Exception as error:
            why = f"the planned step could not be measured beside fit ({_first_line(error)})"
        self._reports.step(plan, 0, measured, predicted)
        try:
            compared = self.planned.check_as(self._reports.newest)
            self._found.append(compared.sentence)
            if compared.differing:
                say(compared.sentence)
        except Exception as error:
            why = f"the planned step could not be compared beside fit ({_first_line(error)})"
        if why:
            say(why)
            self._reports.unchecked(plan, why)


def _first_line(error: Exception) -> str:
    """Returns what an exception is and says, without what TensorFlow adds of the place."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
