# SPDX-License-Identifier: Apache-2.0
"""The budget as a callback: armed while `fit` runs.

model.fit(x, y, callbacks=[reprise.keras.Budget("0.5x")])
"""

from __future__ import annotations

from typing import Any

import keras

from reprise.keras.arming import auto, is_armed, remove, report

__all__ = ["Budget"]


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
