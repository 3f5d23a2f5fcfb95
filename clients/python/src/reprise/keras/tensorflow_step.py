# SPDX-License-Identifier: Apache-2.0
"""The training step of a model on TensorFlow: Keras' step, whose trace `reprise.tensorflow`
rewrites."""

from __future__ import annotations

from typing import Any

import keras

import reprise.tensorflow

__all__ = ["TensorFlowStep"]


class TensorFlowStep:
    """A planned step of one model."""

    def __init__(
        self, model: Any, budget: str | int, time_limit_s: float | None, batch: int | None
    ) -> None:
        self._model, self._budget, self._time_limit_s = model, budget, time_limit_s
        # Of the data that `fit` was given, if nothing else was said.
        self._batch = batch
        self._train: Any = None
        self.planned: reprise.tensorflow.PlannedFunction | None = None

    def replaced(self) -> dict[str, Any]:
        """The methods of the model that are the step's."""
        return {
            "make_train_function": self._make_train_function,
            "_maybe_symbolic_build": self._maybe_symbolic_build,
        }

    @property
    def sentence(self) -> str:
        """Of the newest plan; empty before the first step."""
        applied = self.planned.applied if self.planned is not None else None
        return "" if applied is None else applied.sentence

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Where `fit` shows its data first. A dataset leaves the size of a batch open."""
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
        self.planned = reprise.tensorflow.auto(
            model.train_step, self._budget, time_limit_s=self._time_limit_s, batch=self._batch
        )
        # XLA orders and merges ops as it likes: no plan holds in it.
        compiled, model.jit_compile = model.jit_compile, False
        try:
            self._train = model._make_function(self.planned)
            model.train_function = self._run
        finally:
            model.jit_compile = compiled

    def _run(self, iterator: Any) -> Any:
        """A step of `fit`. Tracing wraps a refusal in an exception of its own: raises the first."""
        assert self.planned is not None
        try:
            return self._train(iterator)
        except Exception:
            refusal = self.planned.refusal
            if refusal is not None:
                raise refusal from None
            raise
