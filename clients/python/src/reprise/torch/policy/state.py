# SPDX-License-Identifier: Apache-2.0
"""Where a model is between its first step and its end: the value that all decisions read.

WARMUP --n plain steps--> CAPTURE --one step--> WAITING --plan--> PLANNED
                             ^                     | refused          | gradients differ,
                             |                     v                  v plan cannot run
                             +- another size,    PLAIN <-------------+
                                another program

Only `decide` (policy.py) makes a new state of an old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """The stages; the value is how a line of the log says it."""

    WARMUP = "warming up"
    CAPTURE = "capturing a step"
    WAITING = "waiting for a plan"
    PLANNED = "training under a plan"
    PLAIN = "training without a plan"


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job is, and why: all that a decision reads beside the event."""

    stage: Stage = Stage.WARMUP
    why: str = ""  # it is there, in words; empty: nothing is to be said
    has_budget: bool = True
    several_ranks: bool = False  # which decide together
    starting: bool = False  # a plain step before the first plan is under way
