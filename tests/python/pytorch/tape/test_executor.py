# SPDX-License-Identifier: Apache-2.0
"""What the planner is told of the tape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reprise.torch.capture.captured import CapturedStep
from reprise.torch.tape import executor
from reprise.torch.tape.costs import Costs
from reprise.torch.tape.executor import TapeExecutor
from reprise.torch.tape.launches import Launches


@pytest.mark.parametrize(
    ("device", "traces_kernels", "replay_ns"),
    [
        ("cuda:0", True, 2 * 900 + 6_000),  # kernels alone: the launch is extra
        ("cuda:0", False, 2 * 900),  # times from the host have the launch in them
        ("cpu", True, 2 * 900),  # nothing is launched
    ],
)
def test_the_planner_is_told_launch_costs_that_op_times_do_not_include(
    device: str, traces_kernels: bool, replay_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "launches", lambda _: Launches(call_ns=6_000, awaited_ns=10_000))
    step = CapturedStep([], [], [], [], [], 0, 0, 0, 0)
    step.stretched = 2.0
    graph: Any = SimpleNamespace(step=step, measured_step_ns=1_000_000)

    tape = TapeExecutor(torch.device(device), lambda: traces_kernels, Costs(3, 2, 900))

    assert tape.capabilities(graph) == f"tape:seeded_ok=1:ns_per_op={replay_ns}"
