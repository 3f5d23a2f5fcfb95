# SPDX-License-Identifier: Apache-2.0
"""First steps of an input shape in which cuDNN tries its algorithms out.

first_calls.begins(key)       # of every step; returns whether it is not to be captured
first_calls.captured(names)   # the operators of a captured step: says what follows, once

With `torch.backends.cudnn.benchmark` the first convolution of every shape runs all algorithms that
may be best, each with a workspace of its own, and keeps the fastest for the rest of the process. A
step that is captured then has workspaces that no later one has, and times that none has. So it
runs, and the next one of that shape is captured. A program with a new shape in nearly every step
is captured all the same, after a few that were passed over.

Made again, a convolution of that shape takes the algorithm that was kept, so its bits are those of
the forward; where there is no memory for that algorithm's workspace, cuDNN takes another one. That
is found by the checks, like any other operator whose bits change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch

from reprise.torch.job.job import EagerJob

# Steps in a row that may stay without a capture: a job whose every step has another shape is
# captured all the same.
PASSED_OVER = 8
# Shapes that are remembered, which bounds the memory of a job with endlessly many.
KNOWN = 4096


def tries_algorithms(device: torch.device) -> bool:
    """Returns whether convolutions on this device are tuned at the first call of a shape."""
    cudnn = torch.backends.cudnn
    return device.type == "cuda" and bool(cudnn.enabled and cudnn.benchmark)


class FirstCalls:
    """Tells the first steps of one session from the others."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._known: set[Hashable] = set()
        self._in_a_row = 0

    def begins(self, key: Hashable) -> bool:
        """Notes a step with this input. Returns whether libraries try their algorithms in it and
        it is not to be captured: it is the first one of its size, unless there were too many of
        those in a row."""
        if not tries_algorithms(self._job.device) or key in self._known:
            self._in_a_row = 0
            return False
        if len(self._known) < KNOWN:
            self._known.add(key)
        self._in_a_row += 1
        return self._in_a_row <= PASSED_OVER

    def captured(self, names: Iterable[str]) -> None:
        """Notes that a step was captured that calls these operators."""
        if tries_algorithms(self._job.device) and any("convolution" in name for name in names):
            self._job.say(
                "torch.backends.cudnn.benchmark is on: the first step of each input shape, in "
                "which cuDNN tries its algorithms, is not captured and is not in the base. A "
                "recomputed convolution uses the algorithm that was kept; another start of the job "
                "may keep another one and give other bits, with or without a plan"
            )
