# SPDX-License-Identifier: Apache-2.0
"""What peaks that the data decides say about those to come."""

from __future__ import annotations

import random

import pytest

from reprise.torch.training.measure import Measured


def _of(peaks: list[int]) -> Measured:
    measured = Measured()
    for peak in peaks:
        measured.planned(1, peak, representative=True, covered=True)
    return measured


def test_equal_peaks_say_that_others_are_equal() -> None:
    measured = _of([1000] * 9)

    assert (measured.under(1).count, measured.under(1).likely_bytes) == (9, 1000)


def test_no_step_says_nothing() -> None:
    measured = Measured()

    assert (measured.under(1).count, measured.under(1).likely_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", ["gauss", "uniform"])
def test_a_thousand_more_steps_hardly_exceed_what_sixteen_have_shown(
    seed: int, spread: str
) -> None:
    draw = random.Random(seed)

    def peak() -> int:
        far = draw.gauss(0, 1) if spread == "gauss" else draw.uniform(-2, 2)
        return int(1_000_000 + 30_000 * far)

    measured = _of([peak() for _ in range(16)])
    likely = measured.under(1).likely_bytes

    assert sum(peak() > likely for _ in range(1000)) <= 2
    assert likely < 1_300_000


def test_a_new_plan_begins_anew() -> None:
    measured = _of([1000, 2000, 3000])

    measured.new_plan(1)

    assert (measured.under(1).count, measured.under(1).likely_bytes) == (0, 0)
