# SPDX-License-Identifier: Apache-2.0
"""What one eager model under Reprise is made of: each part is made here, and is given the job and
the parts that it uses, never the session.

    parts = Parts(job, executor, wait_s)
    parts.planning, parts.checks, ...
"""

from __future__ import annotations

from reprise.torch.job.job import EagerJob
from reprise.torch.planning.beside import Beside
from reprise.torch.planning.coordination import RankCoordinator
from reprise.torch.planning.op_times import OpTimes
from reprise.torch.planning.page import Page
from reprise.torch.planning.planning import Planning
from reprise.torch.planning.together import Together
from reprise.torch.recovery.answer import Answer
from reprise.torch.recovery.planned_retry import PlannedRetry
from reprise.torch.recovery.progress import Progress
from reprise.torch.recovery.startup import Startup
from reprise.torch.session.check_schedule import CheckSchedule
from reprise.torch.session.graphed import Graphed
from reprise.torch.session.retry import Retry
from reprise.torch.session.step_end import StepEnd
from reprise.torch.session.waiting import Waiting
from reprise.torch.tape.executor import TapeExecutor


class Parts:
    """The parts of one session."""

    def __init__(self, job: EagerJob, executor: TapeExecutor, wait_s: float) -> None:
        """`wait_s`: how long the first plan is waited for."""
        self.together, self.page = Together(job), Page(job)
        self.waiting, self.op_times = Waiting(job), OpTimes(job)
        self.planning = Planning(
            job, executor, self.op_times, page=self.page, together=self.together, wait_s=wait_s
        )
        self.beside = Beside(job, self.planning)
        self.checks = CheckSchedule(job, self.planning)
        self.progress = Progress(job)
        self.graphed = Graphed(job, self.beside, self.progress)
        self.startup = Startup(job, self.planning)
        self.planned_retry = PlannedRetry(job, self.progress)
        self.ranks = RankCoordinator(job, self.planning)
        self.answer = Answer(job)
        self.retry = Retry(job, self.together)
        self.step_end = StepEnd(
            job,
            self.planning,
            together=self.together,
            checks=self.checks,
            waiting=self.waiting,
            page=self.page,
        )
