# SPDX-License-Identifier: Apache-2.0
"""Everyday steps under three budgets: measured within them, or refused truly, and trained on."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tensorflow as tf
from tests.tf.models import MODELS

from reprise.tensorflow import auto


@pytest.fixture(autouse=True)
def graph() -> None:
    """These run eagerly, outside of any graph."""


def trained(name: str, how: dict[str, Any] | None) -> tuple[list[bytes], Any, tuple[Any, ...]]:
    """The bits of three losses and of all variables after them; the step, and its data."""
    function, data, variables = MODELS[name]()
    step = auto(function, **how) if how else tf.function(function)
    losses = [step(*data) for _ in range(3)]
    return [value.numpy().tobytes() for value in (*losses, *variables)], step, data


@cache
def plain(name: str) -> list[bytes]:
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        return trained(name, None)[0]
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


@pytest.mark.parametrize("share", ["0.7x", "0.5x", "0.35x"])
@pytest.mark.parametrize("name", list(MODELS))
def test_an_everyday_step_is_within_its_budget_or_trains_on_with_a_true_refusal(
    name: str, share: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made, step, data = trained(name, {"budget": share})

    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("reprise: ")]
    assert made == plain(name)
    if step.applied is not None:
        assert not said
        measured = step.validate()
        assert measured.measured_bytes <= measured.budget_bytes, measured.sentence
        assert step.check(*data).bits
        return
    assert said == [f"reprise: {step.refused.why} Training continues without a plan."]
    # Nothing that is known to be smaller was left out.
    _, nearest, _ = trained(name, {"budget": share, "on_infeasible": "nearest"})
    if nearest.applied is not None:
        assert nearest.measure().measured_bytes > step.refused.budget_bytes
