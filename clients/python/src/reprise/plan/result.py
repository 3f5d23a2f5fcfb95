# SPDX-License-Identifier: Apache-2.0
"""What is known of a planned step, in every framework: `reprise.report(planned)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from reprise.agent.received import Plan
from reprise.base.notebook import InNotebook


@runtime_checkable
class Result(Protocol):
    """What every report has. Bytes are 0 where they are not known (yet)."""

    @property
    def sentence(self) -> str:
        """Predicted, measured and budget in one sentence."""

    @property
    def budget_bytes(self) -> int:
        """The budget; 0 where there is none, as for checkpoints."""

    @property
    def predicted_bytes(self) -> int:
        """The peak that the plan promises."""

    @property
    def measured_bytes(self) -> int:
        """The peak of the newest measured step."""

    @property
    def measured_by(self) -> str:
        """Who measured: "the allocator", "XLA", "a rehearsal"; empty if nobody has."""

    @property
    def bits(self) -> bool | None:
        """Whether the bits were those of the step without a plan; None: not compared."""

    @property
    def overhead(self) -> float | None:
        """Extra time of the plan, predicted, as a fraction of a step without one; None: no plan, or
        not predicted."""

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None if there is none."""


@dataclass(frozen=True, slots=True)
class Known(InNotebook):
    """A result as plain data. `str` of it is the sentence."""

    sentence: str
    budget_bytes: int = 0
    predicted_bytes: int = 0
    measured_bytes: int = 0
    measured_by: str = ""
    bits: bool | None = None
    overhead: float | None = None
    plan: Plan | None = None

    def __str__(self) -> str:
        return self.sentence
