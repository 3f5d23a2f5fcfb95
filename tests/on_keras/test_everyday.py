# SPDX-License-Identifier: Apache-2.0
"""Everyday models under three budgets: measured within them, or refused truly, and trained on."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from tests.on_keras.models import BATCH, MODELS
from tests.on_keras.test_fit import BACKEND, SECONDS

import reprise
import reprise.keras


def fitted(name: str, how: dict[str, Any] | None) -> tuple[list[float], Any]:
    """The losses of an epoch and another, and the model."""
    keras.utils.set_random_seed(0)
    model, x, y = MODELS[name]()
    if how:
        reprise.keras.auto(model, **how)
    keras.utils.set_random_seed(0)
    return model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history["loss"], model


@cache
def plain(name: str) -> list[float]:
    return fitted(name, None)[0]


@pytest.mark.parametrize(
    "share", ["0.5x", *(pytest.param(share, marks=pytest.mark.long) for share in ("0.7x", "0.35x"))]
)
@pytest.mark.parametrize("name", list(MODELS))
def test_an_everyday_model_is_within_its_budget_or_trains_on_with_a_true_refusal(
    name: str, share: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = plain(name)
    how = {"budget": share, "time_limit_s": SECONDS}

    losses, model = fitted(name, how)

    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("reprise: ")]
    found = reprise.report(model)
    if BACKEND == "jax":  # XLA makes other loops of a program in another order
        rough = 1e-2 if name == "mixed_precision" else 1e-4
        np.testing.assert_allclose(losses, expected, rtol=rough, atol=1e-6)
    else:
        assert losses == expected
    if BACKEND == "tensorflow" and found.plan is not None:
        assert found.bits
        found = reprise.keras.measure(model)
    if found.plan is not None:
        assert 0 < found.measured_bytes <= found.budget_bytes, found.sentence
        # Nothing is predicted that a step does not take; a second plan has something to spare.
        assert BACKEND != "torch" or found.predicted_bytes < 1.1 * found.measured_bytes
        return
    assert any("without a plan" in line for line in said), (said, found.sentence)
    # Nothing that is known to be smaller was left out.
    _, other = fitted(name, {**how, "on_infeasible": "nearest"})
    nearest = reprise.report(other)
    assert nearest.plan is None or nearest.measured_bytes > found.budget_bytes > 0
