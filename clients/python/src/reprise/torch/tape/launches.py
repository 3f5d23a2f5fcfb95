# SPDX-License-Identifier: Apache-2.0
"""What launching a replay costs on a GPU, where the time of an op is that of its kernels.

    launch_ns(step, plain_ns, launches(device))     # per replay, beyond its kernels and the tape

A replay adds its kernels to the work of the device and its call to that of the host. A step that
keeps the device busy pays for the kernels, and the call hides behind them. A step that waits for
launches pays for the call, and the kernels hide. In between, the call costs in proportion to the
time that the device waited: a share of 1 - kernels / step. For a replay whose op is like the mean
of the step that is exact at both ends.

The kernels' time comes from the capture, in which the host waited after every op: the time of an op
there, minus that of an op that has next to nothing to do. (Not run on a GPU.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import torch

from reprise.torch.capture.captured import CapturedStep

ROUNDS, CALLS = 7, 50


@dataclass(frozen=True, slots=True)
class Launches:
    """The host's time to launch the smallest op, and the time until the device has run it."""

    call_ns: int
    awaited_ns: int


def launch_ns(step: CapturedStep, plain_ns: int, launches: Launches) -> int:
    """Returns the cost of launching one replay. `step` has the host's times, `plain_ns` is the time
    of a plain step."""
    if plain_ns <= 0:
        return 0
    kernels_ns = sum(
        max(0, op.time_ns - launches.awaited_ns) for op in step.ops if op.func is not None
    )
    return int(launches.call_ns * max(0.0, 1 - kernels_ns / plain_ns))


@cache
def launches(device: torch.device) -> Launches:
    """Measures the launch costs of a device, once per process; the fastest of several rounds. Both
    are 0 for a device without launches, where an op's time includes its call."""
    if device.type != "cuda":
        return Launches(0, 0)
    tiny = torch.ones(1, device=device)
    tiny.neg()
    calls, awaited = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            tiny.neg()
        calls.append((time.perf_counter_ns() - begin) // CALLS)
        torch.cuda.synchronize(device)
        begin = time.perf_counter_ns()
        tiny.neg()
        torch.cuda.synchronize(device)
        awaited.append(time.perf_counter_ns() - begin)
    return Launches(min(calls), min(awaited))
