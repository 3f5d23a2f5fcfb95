# SPDX-License-Identifier: Apache-2.0
"""Every network of the zoo runs under its budget, or is refused by name, and no bit changes.

One budget per network here; REPRISE_ZOO=all runs all budgets over 20 steps (bench/zoo)."""

from __future__ import annotations

import os

import pytest
import torch
import zoo_run
from zoo import ZOO

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

ALL = os.environ.get("REPRISE_ZOO") == "all"
STEPS = 20 if ALL else 12
# A budget at which each of them must have a plan: the smallest of the four that has one.
# What a convolution in bfloat16 takes beside its results depends on the processor.
FITS = {"vgg": None, "lstm": "0.6x", "unet": "0.6x", "autocast-conv": "0.8x"}
CASES = [(name, budget) for name in ZOO for budget in zoo_run.BUDGETS if ALL] or [
    # A few of them every time, all of them every night.
    pytest.param(
        name, FITS.get(name, "0.4x") or "0.8x", marks=pytest.mark.long if number % 6 else ()
    )
    for number, name in enumerate(ZOO)
]


@pytest.mark.parametrize(("name", "budget"), CASES)
def test_a_job_of_the_zoo_fits_and_changes_no_bit_or_is_refused_with_proof(
    name: str, budget: str
) -> None:
    found = zoo_run.run(name, budget, STEPS)

    assert found["curve_equal"]
    assert found["state_equal"]
    if not found["planned_steps"] and (ALL or FITS.get(name, "") is None):
        assert "needs at least" in found["why"]
        return
    assert found["checks"] >= 2
    assert found["validated"], found["why"]
    assert found["values_equal"]
    assert found["measured_peak_bytes"] <= found["budget_bytes"]
    if found["exact"]:
        assert abs(found["measured_peak_bytes"] / found["predicted_peak_bytes"] - 1) <= 0.02


def test_a_job_of_the_zoo_draws_the_same_batches_whatever_else_is_random() -> None:
    first, second = ZOO["gpt"](), ZOO["gpt"]()
    torch.manual_seed(3)
    expected = first.step(4)
    torch.manual_seed(9)
    torch.rand(100)
    torch.manual_seed(3)

    assert torch.equal(second.step(4), expected)
