# SPDX-License-Identifier: Apache-2.0
"""The budget that the planner gets on a GPU that has less memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reprise.base.budget import Budget
from reprise.torch.meter import room
from reprise.torch.planning import request

MIB = 1 << 20
MESSAGE = {"static_bytes": 20 * MIB, "measured_peak_bytes": 120 * MIB}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(request, "capacity", lambda device: 100 * MIB)
    monkeypatch.setattr(request, "advice", lambda device: "")
    known = {"%": {"device_bytes": 100 * MIB}, "t": {"device_free_bytes": 96 * MIB}}
    monkeypatch.setattr(room, "share_of", lambda budget, *_: known.get(budget[-1], {}))
    said: list[str] = []
    return SimpleNamespace(
        device=torch.device("cuda:0"),
        measured=SimpleNamespace(beyond_bytes=3 * MIB),
        meter=SimpleNamespace(live=lambda: 20 * MIB),
        say=said.append,
        said=said,
    )


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("70MiB", "70MiB"),  # and 3 MiB of fragments and 22 MiB of pieces: fits
        ("0.5x", "0.5x"),  # 70 MiB of this step
        ("80MiB", str(75 * MIB)),
        ("0.6x", str(75 * MIB)),
        ("70%", "70%"),
        ("90%", str(75 * MIB)),
        ("fit", str(75 * MIB)),
    ],
)
def test_a_budget_leaves_room_for_the_allocators_overhead(
    budget: str, expected: str, session: Any
) -> None:
    assert request.within_device(session, MESSAGE, Budget(budget)) == expected
    assert len(session.said) == (budget != expected)


def test_the_budget_that_is_requested_instead_is_logged_with_its_reason(session: Any) -> None:
    request.within_device(session, MESSAGE, Budget("80MiB"))

    assert session.said == [
        "requesting a plan within 75.0 MiB instead of 80.0 MiB: this process can have 100.0 MiB of "
        "cuda:0, and the allocator may take 25.0 MiB more than is requested"
    ]


def test_on_a_host_the_full_budget_is_requested(session: Any) -> None:
    session.device = torch.device("cpu")

    assert request.within_device(session, MESSAGE, Budget("80MiB")) == "80MiB"
