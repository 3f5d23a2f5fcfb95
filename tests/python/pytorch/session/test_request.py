# SPDX-License-Identifier: Apache-2.0
"""The budget that the planner gets on a GPU that has less memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reprise.torch.capture.captured import CapturedStep
from reprise.torch.meter import room
from reprise.torch.session import request
from reprise.torch.tape.costs import Costs
from reprise.torch.tape.launches import Launches

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
    assert request.within_device(session, MESSAGE, budget) == expected
    assert len(session.said) == (budget != expected)


def test_the_budget_that_is_requested_instead_is_logged_with_its_reason(session: Any) -> None:
    request.within_device(session, MESSAGE, "80MiB")

    assert session.said == [
        "requesting a plan within 75.0 MiB instead of 80.0 MiB: this process can have 100.0 MiB of "
        "cuda:0, and the allocator may take 25.0 MiB more than is requested"
    ]


def test_on_a_host_the_full_budget_is_requested(session: Any) -> None:
    session.device = torch.device("cpu")

    assert request.within_device(session, MESSAGE, "80MiB") == "80MiB"


@pytest.mark.parametrize(
    ("device", "cupti", "replay_ns"),
    [
        ("cuda:0", request.KERNELS, 2 * 900 + 6_000),  # kernels alone: the launch is extra
        ("cuda:0", request.KERNELS - 1, 2 * 900),  # times from the host have the launch in them
        ("cpu", request.KERNELS, 2 * 900),  # nothing is launched
    ],
)
def test_the_planner_is_told_launch_costs_that_op_times_do_not_include(
    device: str, cupti: int, replay_ns: int, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "launches", lambda _: Launches(call_ns=6_000, awaited_ns=10_000))
    session.device = torch.device(device)
    session.costs = Costs(3, 2, 900)
    session.agent = SimpleNamespace(capabilities=lambda: SimpleNamespace(cupti=cupti))
    step = CapturedStep([], [], [], [], [], 0, 0, 0, 0)
    step.stretched = 2.0
    rung: Any = SimpleNamespace(graph=SimpleNamespace(step=step, measured_step_ns=1_000_000))

    told = request.executor(session, rung)

    assert told == f"tape:seeded_ok=1:ns_per_op={replay_ns}"
