# SPDX-License-Identifier: Apache-2.0
"""A share of a step is fixed once, in bytes."""

from __future__ import annotations

import pytest

from reprise.base.budget import Budget
from reprise.torch.planning.request import Share

# Static bytes and peak of step graphs as they are planned; whether nothing fits; what is asked for.
CASES: dict[str, tuple[list[tuple[int, int, bool]], list[str]]] = {
    "one step": ([(20, 120, False)], ["0.5x"]),  # 20 + 50 = 70
    "a larger one, within the same bytes": ([(20, 120, False), (20, 160, False)], ["0.5x", "70"]),
    "a smaller one, too": ([(20, 120, False), (20, 60, False)], ["0.5x", "70"]),
    "one of the same size again": ([(20, 120, False), (20, 120, False)], ["0.5x", "0.5x"]),
    "a larger input is no static memory": ([(20, 120, False), (24, 124, False)], ["0.5x", "70"]),
    "what stands beside is beside the share": (
        [(20, 120, False), (60, 180, False)],
        ["0.5x", "110"],
    ),
    "nothing fits a larger one: once more, with its own share": (
        [(20, 120, False), (20, 220, True), (20, 220, False), (20, 160, False)],
        ["0.5x", "70", "0.5x", "120"],
    ),
    "nothing fits a smaller one: that is final": (
        [(20, 120, False), (20, 60, True), (20, 60, False)],
        ["0.5x", "70", "70"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_share_means_the_same_bytes_for_all_steps(case: str) -> None:
    graphs, expected = CASES[case]
    share, asked = Share(), []
    for number, (static, peak, refused) in enumerate(graphs):
        message = {"static_bytes": static, "measured_peak_bytes": peak}
        asked.append(share.within(Budget("0.5x"), number, message, 0))
        if refused:
            assert bool(share.raised(number)) == (peak > 120)
    assert asked == expected


def test_the_first_share_is_of_the_largest_plain_step_and_another_budget_is_as_it_is() -> None:
    message = {"static_bytes": 20, "measured_peak_bytes": 120}
    share = Share()

    assert share.within(Budget("0.5x"), 1, message, 180) == "100"
    assert share.within(Budget("50MiB"), 2, message, 180) == "50MiB"
    assert share.within(Budget("0.6x"), 3, message, 120) == "0.6x"


def test_a_share_beside_which_nothing_is_held_back_is_given_in_bytes() -> None:
    message = {"static_bytes": 20, "measured_peak_bytes": 120}

    assert Share().within(Budget("0.5x"), 1, message, 0, in_bytes=True) == "70"


def test_a_share_is_not_raised_because_memory_ran_out() -> None:
    share, small, large = Share(), (20, 120), (20, 220)
    for number, (static, peak) in enumerate((small, large)):
        share.within(
            Budget("0.5x"), number, {"static_bytes": static, "measured_peak_bytes": peak}, 0
        )

    share.stays(1)

    assert share.raised(1) == ""
    again = {"static_bytes": 20, "measured_peak_bytes": 220}
    assert share.within(Budget("0.5x"), 1, again, 0) == "70"
    assert share.raised(1)
