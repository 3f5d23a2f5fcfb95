# SPDX-License-Identifier: Apache-2.0
"""What recovery from memory that runs out needs of the job around it, and nothing more.

`Startup`, `PlainRetry`, `PlannedRetry` and `PlannedForward.obstacle` are given a `Job`: what the
ranks need of it (ladder/job.py), and the members below. The session of a model is one. Nothing here
knows what a session is, so no import leads back up to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.ladder import job
from reprise.torch.ladder.coordination import RankCoordinator
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.step_times import StepTimes
from reprise.torch.tape.tape_run import Run

__all__ = ["Attempts", "Job", "Planning", "Progress", "Startup", "Step"]


class Step(job.Step, Protocol):
    """The step under way."""

    run: Run | None  # None: it is not planned
    times: StepTimes

    def abandon(self) -> None:
        """Forgets the step, so that it can be run again."""

    def stop_check(self) -> None:
        """Compares nothing after this step."""


class Startup(job.Startup, Protocol):
    """The steps before the first plan."""

    def failed(self, where: str, why: str) -> None:
        """Notes that a step ran out of memory, and where."""


class Planning(job.Planning, Protocol):
    """Asks for plans and applies them."""

    rung: Rung | None  # of the last planned step
    coordinator: RankCoordinator | None  # None: one rank

    def sketched(self, graph: CapturedGraph, share: float) -> str:
        """Asks for a plan of a graph made from shapes alone; returns why there is none."""


class Attempts(Protocol):
    """Runs what has run out of memory again."""

    short_of_memory: bool  # memory has run out before

    def forward_again(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: Any,
        why: str,
    ) -> Any:
        """Runs the forward of a plain step again, and returns its output."""

    def retake(self, forward: Any, arguments: tuple[Any, Any], why: str) -> Any:
        """Runs the forward of a planned step again, and returns its output."""

    def gave_up(self, what: str, why: str) -> None:
        """Says that a step cannot be run again, and why."""


class Progress(Protocol):
    """Knows where the step is."""

    def ran_out(self, error: BaseException | None, asked: int = 0) -> None:
        """Reports what filled the memory."""


class Job(job.Job, Protocol):
    """The session of a model, as recovery sees it."""

    meter: Meter
    device: torch.device
    budget: str | None
    busy: bool  # a forward of Reprise's own is running

    @property
    def model(self) -> nn.Module:
        """Returns the model."""

    @property
    def step(self) -> Step:
        """Returns the step under way."""

    @property
    def startup(self) -> Startup:
        """Returns what runs the steps before the first plan."""

    @property
    def planning(self) -> Planning:
        """Returns what asks for plans."""

    @property
    def attempts(self) -> Attempts:
        """Returns what runs a step again."""

    @property
    def progress(self) -> Progress:
        """Returns what knows where the step is."""

    def stop_planning(self, why: str) -> None:
        """Ends planning for good."""
