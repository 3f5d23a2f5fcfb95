# SPDX-License-Identifier: Apache-2.0
"""The plans of one model, as data: those that its steps may run under, and the one that they do."""

from __future__ import annotations

from dataclasses import dataclass, field

from reprise.plan import Plan
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.rung import Rung
from reprise.torch.tape.executor import TapePlan


@dataclass(slots=True)
class Plans:
    """The plans of one model by input size."""

    ladder: Ladder = field(default_factory=Ladder)
    rung: Rung | None = None  # of the last planned step
    refused: Plan | None = None  # the server's "no plan fits"

    @property
    def plan(self) -> Plan | None:
        """The plan of the last planned step; the refusal if that is what came."""
        return self.refused if self.rung is None else self.rung.plan

    @property
    def graph(self) -> CapturedGraph | None:
        """The step graph behind `plan`."""
        rungs = self.ladder.rungs
        return self.rung.graph if self.rung else rungs[-1].graph if rungs else None

    @property
    def handles(self) -> list[TapePlan]:
        """The plans that are installed: of each rung that has one."""
        planned = [rung.planned for rung in self.ladder.rungs]
        return [handle for handle in planned if handle is not None and handle.tape is not None]

    @property
    def current(self) -> TapePlan:
        """The installed plan of the last planned step, of which there must be one."""
        assert self.rung is not None
        assert self.rung.planned is not None
        return self.rung.planned
