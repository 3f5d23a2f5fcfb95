# SPDX-License-Identifier: Apache-2.0
"""A pytest mark that fails when a predicted peak exceeds a bound.

    @pytest.mark.reprise_peak("2GiB")
    def test_the_model_still_fits():
        reprise.estimate(Model(), step, torch.empty(64, 3, 224, 224, device="meta"))

Every `reprise.estimate` inside the test counts. A test that makes none fails, because it checks
nothing. pytest loads this through the entry point `pytest11`, or with `-p reprise.pytest_plugin`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark."""
    config.addinivalue_line(
        "markers", 'reprise_peak(bound): fails when a predicted peak exceeds the bound ("2GiB")'
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fails a marked test if a predicted peak exceeds the bound, or if nothing was predicted."""
    mark = item.get_closest_marker("reprise_peak")
    if mark is None:
        return (yield)
    given = Budget(mark.args[0] if mark.args else mark.kwargs["bound"])
    bound = given.bytes
    if bound is None:
        raise RepriseError(f"reprise_peak: {given} is no number of bytes; write 8GiB or 8GB")
    from reprise.torch.estimation.estimate import recorded_peaks

    peaks: list[int] = []
    recorded_peaks().append(peaks)
    try:
        result = yield
    finally:
        recorded_peaks().remove(peaks)
    if not peaks:
        pytest.fail("reprise_peak: the test made no reprise.estimate, so it checks nothing")
    if max(peaks) > bound:
        pytest.fail(
            f"reprise_peak: the predicted peak is {format_bytes(max(peaks))}, "
            f"more than {format_bytes(bound)}"
        )
    return result
