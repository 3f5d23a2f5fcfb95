# SPDX-License-Identifier: Apache-2.0
"""The data decides sizes within the step: routing, masks, detection heads, ragged batches. Planned
steps keep to the budget all the same, and no bit changes. bench/zoo/varying.py counts the same over
a thousand steps."""

from __future__ import annotations

import pytest
import varying

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]


@pytest.mark.parametrize(
    ("name", "budget"), [("routed", "0.8x"), ("masked", "0.6x"), ("detector", "0.95x")]
)
def test_sizes_that_the_data_decides_keep_to_the_budget(name: str, budget: str) -> None:
    found = varying.run(name, budget, steps=40)

    assert found.equal
    assert found.planned >= 30, found.why
    assert found.above == 0, f"by up to {found.most_above:.1%}"
    assert found.captures <= 3


@pytest.mark.parametrize("seed", [7, 8])
def test_sizes_beyond_those_that_fixed_a_share_are_planned_once_they_come(seed: int) -> None:
    found = varying.run("ragged", "0.6x", steps=60, seed=seed)

    assert found.equal
    assert found.planned >= 55, found.why
    assert found.above == 0, f"by up to {found.most_above:.1%}"
    assert found.captures <= 3


@pytest.mark.parametrize("budget", ["0.8x", "0.6x"])
def test_forwards_that_the_data_ends_early_keep_to_the_budget(budget: str) -> None:
    found = varying.run("exits", budget, steps=60)

    assert found.equal
    assert found.planned >= 50, found.why
    # The first one that was guessed to be short, and was not.
    assert found.above <= 1, f"by up to {found.most_above:.1%}"
    assert found.captures <= 3
