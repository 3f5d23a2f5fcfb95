# SPDX-License-Identifier: Apache-2.0
"""A session as those parts see it that call many others: the step, its retries and planning.

They come after the parts that are named here, and none of these imports them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from reprise.torch.recovery.planned_retry import PlannedRetry
from reprise.torch.recovery.startup import Startup
from reprise.torch.session.check_schedule import CheckSchedule
from reprise.torch.session.first_calls import FirstCalls
from reprise.torch.session.job import Job
from reprise.torch.session.leaving import Leaving
from reprise.torch.session.offers import Offers
from reprise.torch.session.op_times import OpTimes
from reprise.torch.session.peaks import Peaks
from reprise.torch.session.progress import Progress
from reprise.torch.session.retry import Retry
from reprise.torch.session.unplanned import Unplanned
from reprise.torch.session.waiting import Waiting
from reprise.torch.session.watched import Watched

__all__ = ["Parts"]


class Parts(Job, Protocol):
    """The session of a model with the parts that need no others."""

    startup: Startup
    checks: CheckSchedule
    planned_retry: PlannedRetry
    op_times: OpTimes
    peaks: Peaks
    first_calls: FirstCalls
    retry: Retry
    unplanned: Unplanned
    leaving: Leaving
    waiting: Waiting
    watched: Watched
    offers: Offers
    progress: Progress

    def say_status(self) -> None:
        """Says once what was predicted and what was measured."""

    def unmeasured(self) -> AbstractContextManager[None]:
        """Keeps what runs inside out of the peaks of all steps under way."""
