# SPDX-License-Identifier: Apache-2.0
"""A budget that is sent to a job which trains without a plan, from the page of its run.

    offers.asked(request_id)   # a step graph went to the server, and no plan came of it
    offers.look()              # before a step: has a plan come after all?

The plan was made for a graph whose executor nobody had chosen, so only its budget is taken: the
next step is captured, and the plan asked for as at the start. A job that has a plan takes another
one in its place (planning.py) and needs nothing of this.
"""

from __future__ import annotations

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.torch.job.job import EagerJob
from reprise.torch.policy.events import Fact
from reprise.torch.policy.state import Stage


class Offers:
    """Waits for a budget in one session."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._request_id: int | None = None
        self._have = 0

    def asked(self, request_id: int | None, have: int = 0) -> None:
        """Notes the request to which a plan would be an answer; `have` is the number of a plan that
        it brought and that is not run (0: none)."""
        self._request_id, self._have = request_id, have

    def look(self) -> None:
        """Begins to plan if a budget has come. Costs one call of the agent, which never waits."""
        job = self._job
        if self._request_id is None or job.stage is not Stage.PLAIN:
            return
        try:
            reply = job.agent.poll_plan(self._request_id, self._have)
        except RepriseError:
            self._request_id = None  # a plan that cannot be read; there is no second one
            return
        if reply.kind != "plan" or reply.plan is None or not reply.plan.feasible:
            return
        self._request_id = None
        budget = Budget(reply.plan.budget or reply.plan.budget_bytes)
        job.say(f"a budget of {budget} was sent to the job: its next step is captured")
        job.budget = budget
        job.happened(Fact.BUDGET_SENT)
