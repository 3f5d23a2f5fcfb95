# SPDX-License-Identifier: Apache-2.0
"""Keras 3 under a budget of memory: one call between `compile` and `fit`.

    model.compile(...)
    reprise.keras.auto(model, budget="0.5x")
    model.fit(...)

The step is planned op by op by the executor of the backend. docs/keras.md is the page for users.
"""

from __future__ import annotations

from reprise.keras.arming import Budget, auto, measure, remove, report

__all__ = ["Budget", "auto", "measure", "remove", "report"]
