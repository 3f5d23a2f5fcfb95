# SPDX-License-Identifier: Apache-2.0
"""Where a model is between its first step and its end.

WARMUP --n plain steps--> CAPTURE --one step--> WAITING --plan--> PLANNED
                             ^                     | refused          | gradients differ,
                             |                     v                  v plan cannot run
                             +- another size,    PLAIN <-------------+
                                another program
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Stage"]


class Stage(Enum):
    """The stages; the value is how a line of the log says it."""

    WARMUP = "warming up"
    CAPTURE = "capturing a step"
    WAITING = "waiting for a plan"
    PLANNED = "training under a plan"
    PLAIN = "training without a plan"
