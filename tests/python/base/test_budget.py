# SPDX-License-Identifier: Apache-2.0
"""A budget as people write it, and what it means."""

from __future__ import annotations

import copy
import pickle

import pytest

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError


@pytest.mark.parametrize(
    "text", ["22GiB", "22GB", "8 GiB", "1.5GiB", "512kB", "23622320128", "0.5x", "90%", "fit"]
)
def test_a_budget_given_as_text_is_passed_on_unchanged(text):
    assert Budget(text) == text


def test_a_number_without_a_unit_is_a_budget_in_bytes():
    assert Budget(1 << 30) == "1073741824"


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("8G", 'budget "8G": the unit "G" can mean two sizes; write 8GiB (binary) or 8GB'),
        ("1.5k", "write 1.5KiB (binary) or 1.5kB (decimal)"),
        ("", "is empty"),
        ("-8GiB", "must be positive"),
        ("0", "must be positive"),
        ("0x", "the fraction must be above 0"),
        ("101%", "at most 100 %"),
        ("1.5", "bytes are whole numbers"),
        ("8Gb", "the unit is not known; did you mean 8GB?"),
        ("8gib", "the unit is not known; did you mean 8GiB?"),
        ("1.5 KB", "the unit is not known; did you mean 1.5kB?"),
        ("0.5X", "the unit is not known; did you mean 0.5x?"),
        ("9" * 400, "is larger than any memory"),
        ("8Gbit", "the unit is not known; write 8GiB"),
        ("Fit", "did you mean fit?"),
        ("half", "does not start with a number"),
        ("1.2.3GiB", "does not start with a number"),
        (True, "must be text or a number"),
        (0.5, "must be text or a number"),
    ],
)
def test_a_mistyped_budget_is_refused_with_the_remedy(budget, says):
    with pytest.raises(RepriseError) as refused:
        Budget(budget)

    assert says in str(refused.value)


# A budget, what it is, that in bytes for a step of 20 static bytes that peaks at 120, and half of
# it.
@pytest.mark.parametrize(
    ("text", "kind", "amount", "of_step", "half"),
    [
        ("64", "bytes", 64, 64, "32"),
        ("1.5 KiB", "bytes", 1536, 1536, "768"),
        ("2kB", "bytes", 2000, 2000, "1000"),
        ("0.5x", "share", 0.5, 70, "0.25x"),
        ("90%", "percent", 90, None, "45%"),
        ("fit", "fit", 0, None, "fit"),
    ],
)
def test_a_budget_is_parsed_once(
    text: str, kind: str, amount: float, of_step: int | None, half: str
) -> None:
    budget = Budget(text)

    assert (budget.kind, budget.amount) == (kind, amount)
    assert budget.of_step(20, 120) == of_step
    assert budget.bytes == (of_step if kind == "bytes" else None)
    assert budget.scaled(0.5) == half
    assert budget.scaled(1) is budget
    assert Budget(budget) is budget
    for other in (copy.deepcopy(budget), pickle.loads(pickle.dumps(budget))):
        assert (other, other.kind, other.amount) == (budget, kind, amount)


def test_the_plan_that_needs_least_is_no_budget_that_anybody_can_write() -> None:
    assert Budget.least().kind == "least"
    with pytest.raises(RepriseError, match="does not start with a number"):
        Budget("least")


def test_a_budget_that_is_made_small_is_left_to_the_server_to_refuse() -> None:
    assert Budget("1").scaled(0.5) == "0"
    assert Budget("0.00001x").scaled(0.5).of_step(20, 20 + 10**7) == 20 + 50
