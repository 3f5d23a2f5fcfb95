# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and budgets as text."""

import json

import pytest

from reprise.errors import RepriseError
from reprise.units import (
    check_budget,
    format_bytes,
    format_bytes_up,
    format_duration,
    format_percent,
)


def test_bytes_print_as_in_cpp_and_typescript(root):
    cases = json.loads((root / "tests" / "fixtures" / "units.json").read_text())

    assert [format_bytes(value) for value, _ in cases] == [text for _, text in cases]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.5 us"),
        (41_200, "41.2 us"),
        (999_499, "999 us"),
        (999_500, "1 ms"),
        (412_000_000, "412 ms"),
        (1_234_567_890, "1.23 s"),
        (-1_500, "-1.5 us"),
    ],
)
def test_durations_have_three_digits(ns, text):
    assert format_duration(ns) == text


def test_percentages_have_one_decimal_and_a_sign_on_request():
    assert format_percent(0.0937) == "9.4 %"
    assert format_percent(0.0937, sign=True) == "+9.4 %"
    assert format_percent(-0.009, sign=True) == "-0.9 %"
    assert format_percent(-0.00001) == "0.0 %"
    assert format_percent(float("nan")) == "? %"


@pytest.mark.parametrize(
    "text", ["22GiB", "22GB", "8 GiB", "1.5GiB", "512kB", "23622320128", "0.5x", "90%", "fit"]
)
def test_a_budget_given_as_text_is_passed_on_unchanged(text):
    assert check_budget(text) == text


def test_a_number_without_a_unit_is_a_budget_in_bytes():
    assert check_budget(1 << 30) == "1073741824"


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
        check_budget(budget)

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1024, "1.0 KiB"),
        (1025, "1.1 KiB"),
        ((9 << 20) + (115 << 10), "9.2 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (9 << 30, "9.0 GiB"),
    ],
)
def test_bytes_rounded_up_are_never_less_than_they_are(value: int, text: str) -> None:
    assert format_bytes_up(value) == text
