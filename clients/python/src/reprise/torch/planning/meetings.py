# SPDX-License-Identifier: Apache-2.0
"""When this rank meets the others, from the end of its first step on.

    meetings.begin()          # the first step begins: there may be other ranks
    meetings.due              # are they met when this step ends?
    meetings.meet()           # it has ended

The first meeting finds out who trains the model, at the end of the first step or, where not all
come, of the second. From then on the ranks decide together (coordination.py).
"""

from __future__ import annotations

from reprise.base.errors import RepriseError
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.ranks import Missing, Ranks, in_pipeline
from reprise.torch.planning.coordination import RankCoordinator
from reprise.torch.planning.planning import Planning
from reprise.torch.policy.events import RanksMet

MEETINGS = 2  # at the most, for the ranks to find each other


class Meetings:
    """The meetings of this rank with the others that train its model."""

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._planning = planning
        self._left = 0  # meetings, for the ranks to find each other
        self.coordinator: RankCoordinator | None = None  # None: one rank, or not known yet

    def begin(self) -> None:
        """Has the ranks find each other when the step under way ends."""
        self._left = 0 if in_pipeline() else MEETINGS

    @property
    def unknown(self) -> bool:
        """Whether the other ranks are still to be met for the first time."""
        return self._left > 0

    @property
    def due(self) -> bool:
        """Whether the other ranks are met at the end of this step."""
        return self.unknown or (self.coordinator is not None and self.coordinator.is_due())

    def meet(self) -> None:
        """Meets the other ranks at the end of a step, if it is time to."""
        if self.unknown:
            self._find()
        if self.coordinator is not None:
            self.coordinator.meet()

    def _find(self) -> None:
        self._left -= 1
        try:
            ranks = Ranks.here()
        except RepriseError as error:
            if not isinstance(error, Missing) or not self._left:
                self._left = 0
                self._job.say(f"{error}; this rank is planned by itself")
            return
        self._left = 0
        if ranks is not None:
            self.coordinator = RankCoordinator(self._job, self._planning, ranks)
            self._job.happened(RanksMet())
