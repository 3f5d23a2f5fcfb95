# SPDX-License-Identifier: Apache-2.0
"""Everyday models under three budgets, and loops whose body one would put under jax.checkpoint."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import pytest
from tests.on_jax.models import MODELS, SCANS
from tests.on_jax.test_auto import leaves

import reprise
import reprise.jax
from reprise.jax.compiled import memory_of
from reprise.jax.ulps import difference

SECONDS = 0.5

# For which no plan is known: a pooling's gradient alone needs more, as XLA's CPU compiler makes it;
# the others are a few kilobytes away, or ask for more than was ever found.
WITHOUT = {
    ("cnn", "0.5x"),
    ("cnn", "0.35x"),
    ("unet", "0.35x"),
    ("transformer", "0.35x"),
    ("adam", "0.35x"),
    ("two_losses", "0.5x"),
    ("two_losses", "0.35x"),
}


@cache
def model(name: str) -> tuple[Any, tuple[Any, ...], Any]:
    step, args = MODELS[name]()
    return step, args, leaves(jax.jit(step)(*args))


@pytest.mark.parametrize("share", ["0.7x", "0.5x", "0.35x"])
@pytest.mark.parametrize("name", list(MODELS))
def test_an_everyday_step_is_within_its_budget_or_trains_on_with_a_true_refusal(
    name: str, share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train, args, plain = model(name)
    step = reprise.jax.auto(train, budget=share, time_limit_s=SECONDS)

    made = step(*args)

    found, said = step.found, capsys.readouterr().err
    assert found is not None
    assert found.compiled is not None
    if found.why:
        assert (name, share) in WITHOUT
        assert found.plan is None
        assert said == f"reprise: {found.why} Training continues without a plan.\n"
        assert "clusters" in found.why or "compiles to it" in found.why
        assert "Nothing fits" not in found.why
    else:
        assert found.compiled.total <= found.budget_bytes
        assert not said
    result = reprise.report(step)
    assert result.measured_bytes == memory_of(found.program).total
    assert result.measured_by == "XLA"
    off = difference(plain, leaves(made)).most_relative
    assert off < (0.05 if name == "mixed_precision" else 1e-4)


@pytest.mark.parametrize("name", list(SCANS))
def test_a_scan_needs_no_more_than_with_its_body_under_jax_checkpoint(name: str) -> None:
    loss, params, data = SCANS[name](False)
    by_hand, plain = (
        jax.jit(jax.value_and_grad(SCANS[name](remat)[0])).lower(params, *data).compile()
        for remat in (True, False)
    )
    step = reprise.jax.value_and_grad(
        loss, budget=memory_of(by_hand).total, time_limit_s=SECONDS, on_infeasible="raise"
    )

    made = step(params, *data)

    assert step.found is not None
    assert step.found.plan is not None
    assert difference(leaves(plain(params, *data)), leaves(made)).most_relative < 1e-4
