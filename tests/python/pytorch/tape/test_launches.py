# SPDX-License-Identifier: Apache-2.0
"""What a replay's launch costs on a GPU: the formula, on made-up times."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reprise.torch.capture.captured import FORWARD, CapturedOp, CapturedStep
from reprise.torch.internals.ops import OpKind
from reprise.torch.tape.launches import Launches, launch_ns, launches

MEASURED = Launches(call_ns=6_000, awaited_ns=10_000)


def step(kernel_ns: int, ops: int = 100) -> CapturedStep:
    """Returns a step whose ops were captured while the host waited for each of them."""
    made: list[Any] = [CapturedOp(None, "reprise.step_begin", FORWARD, OpKind.ONCE, False)]
    for _ in range(ops):
        op = CapturedOp(torch.ops.aten.neg.default, "neg", FORWARD, OpKind.PURE, True)
        op.time_ns = MEASURED.awaited_ns + kernel_ns
        made.append(op)
    return CapturedStep(made, [], [], [], [], 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kernel_ns", "plain_ns", "expected"),
    [
        (2_000, 600_000, 4_000),  # kernels of 2 us, launched every 6: with them a replay takes 6
        (50_000, 5_000_000, 0),  # the device is never idle: the call hides behind it
        (3_000, 600_000, 3_000),
        (9_000, 600_000, 0),  # what was captured took longer than plain steps
        (2_000, 0, 0),  # not known
    ],
)
def test_the_cost_of_a_launch_grows_with_the_time_the_device_waits_for_launches(
    kernel_ns: int, plain_ns: int, expected: int
) -> None:
    assert launch_ns(step(kernel_ns), plain_ns, MEASURED) == expected


def test_without_launches_an_op_time_includes_its_call() -> None:
    assert launches(torch.device("cpu")) == Launches(0, 0)
    assert launch_ns(step(2_000), 600_000, launches(torch.device("cpu"))) == 0
