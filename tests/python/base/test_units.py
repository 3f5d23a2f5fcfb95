# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as text."""

import json

import pytest

from reprise.base.units import (
    format_bytes,
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
    assert format_bytes(value, up=True) == text
