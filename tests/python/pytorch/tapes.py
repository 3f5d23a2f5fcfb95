# SPDX-License-Identifier: Apache-2.0
"""A captured step of a job, a random plan for it, and a tape that runs it."""

from __future__ import annotations

from typing import Any

import referee
from jobs import CapturedGraph, Job, Tape, captured, compile_plan, plain_step, start_meter

__all__ = ["plan", "prepared", "tape_for"]


def prepared(made: Job) -> CapturedGraph:
    plain_step(made, 0)
    return captured(made, start_meter())


def plan(graph: CapturedGraph, seed: int = 0, share: float = 1.0, again: float = 0.3) -> list[int]:
    return referee.random_plan(graph.message(), seed, share, again)


def tape_for(graph: CapturedGraph, **options: Any) -> Tape:
    return Tape(compile_plan(graph, plan(graph, **options)))
