# SPDX-License-Identifier: Apache-2.0
"""What the ladder of several ranks needs of the job around it, and nothing more.

`RankCoordinator` is made with a `Job`. The session of a model is one; a test can pass any object
that has these members. Nothing here knows what a session is, so no import leads back up to it.
"""

from __future__ import annotations

from typing import Any, Protocol

from reprise.agent import Agent, PlanReply
from reprise.plan import Plan
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Key, Rung
from reprise.torch.policy.stage import Stage
from reprise.torch.tape.executor import TapePlan

__all__ = ["Job", "Measured", "Notes", "Planning", "Startup", "Step"]


class Step(Protocol):
    """The step under way."""

    number: int
    key: Key  # its input's shapes


class Notes(Protocol):
    """What earlier starts of the job left."""

    tighter: float  # budgets are multiplied by this


class Startup(Protocol):
    """The steps before the first plan."""

    @property
    def notes(self) -> Notes:
        """Returns what earlier starts left."""


class Measured(Protocol):
    """What was measured so far."""

    def peak_under(self, rung: int) -> int:
        """Returns the highest peak of steps under the plan of a rung, in bytes."""


class Planning(Protocol):
    """Asks for plans and applies them."""

    ladder: Ladder
    wait_s: float

    def measure_costs(self, graph: CapturedGraph) -> None:
        """Measures what the tape costs here for ops as large as those of a step, once."""

    def submit(self, rung: Rung, message: dict[str, Any] | None = None) -> None:
        """Asks for a plan of a rung's graph, or of one that was computed for a size not seen."""

    def needs_more(self, rung: Rung, more_bytes: int) -> bool:
        """Asks for a plan in the place of a rung's, which needs `more_bytes` more than it says;
        returns whether the request was accepted."""

    def reply(self, rung: Rung, wait_s: float = 0) -> PlanReply:
        """Returns the answer for a rung, after waiting for it at most `wait_s`."""

    def take(self, rung: Rung, reply: PlanReply) -> bool:
        """Acts on an answer; returns whether it was the last one for this rung."""

    def prepared(self, rung: Rung, plan: Plan) -> TapePlan | str:
        """Returns the plan as this rank runs it, or why it cannot run."""

    def apply(self, rung: Rung, planned: TapePlan) -> None:
        """Runs steps of this rung under the plan from now on."""

    def reject(self, plan: Plan, why: str) -> None:
        """Reports that a plan is not used."""

    def drop(self, why: str) -> None:
        """Ends planning and releases all plans."""

    def plan(self, key: Key, graph: CapturedGraph, left_out: frozenset[str], leaks: bool) -> None:
        """Makes a captured step a rung of this rank, and asks for its plan."""

    def go_alone(self, asked: set[int]) -> None:
        """Decides without other ranks from now on. `asked`: the rungs that this rank asks for."""


class Job(Protocol):
    """The session of a model, as its ranks see it."""

    agent: Agent
    stage: Stage
    why: str

    @property
    def step(self) -> Step:
        """Returns the step under way."""

    @property
    def startup(self) -> Startup:
        """Returns what runs the steps before the first plan."""

    @property
    def measured(self) -> Measured:
        """Returns what was measured so far."""

    @property
    def planning(self) -> Planning:
        """Returns what asks for plans."""

    def say(self, text: str) -> None:
        """Writes one line to standard error, once."""
