# SPDX-License-Identifier: Apache-2.0
"""What a job without a plan and the page of its run have to do with each other.

    page.wants()              # after the warm-up of a job without a budget: is this step captured?
    page.captured(step)       # it was: its graph goes to the server, the job trains on plainly
    page.give_up()            # it cannot be
    page.asked(request_id)    # a step graph went to the server, and no plan came of it
    page.look()               # before a step: has a budget come after all?

The page of a job without a budget shows what any budget would cost, plans it when the run has
ended, and sends it to the job while it runs. So one step is captured for it. A captured step runs
the same kernels on the same tensors, and so makes the same bits; it takes longer, once, which is
said. REPRISE_CAPTURE=0 leaves it out. A job of several processes is not captured: its ranks would
wait for the one that is.

The plan that the page sends was made for a graph whose executor nobody had chosen, so only its
budget is taken: the next step is captured, and the plan asked for as at the start. A job that has a
plan takes another one in its place (planning.py) and needs nothing of this.
"""

from __future__ import annotations

import os

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_duration
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import build, settle
from reprise.torch.internals.distributed import ranks_have_met
from reprise.torch.internals.dynamo import compiled_parts
from reprise.torch.job.job import EagerJob
from reprise.torch.policy.events import Fact
from reprise.torch.policy.state import Stage

# Captures that may fail before none is tried any more: each costs a slow step.
TRIES = 3
# Executor that the page plans for until a budget is given.
EXECUTOR = "tape:seeded_ok=1"


class Page:
    """Captures a step for the page of one session, and takes a budget from it."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._tries = 0
        self._request_id: int | None = None  # to which a plan would be an answer
        self._have = 0

    @property
    def may_capture(self) -> bool:
        """Whether a step is captured after the warm-up of a job without a budget."""
        left_out = os.environ.get("REPRISE_CAPTURE") == "0" or ranks_have_met()
        return not (left_out or compiled_parts(self._job.model))

    def wants(self) -> bool:
        """Returns whether the step that begins is captured."""
        if self._job.stage is not Stage.CAPTURE:
            return False
        self._tries += 1
        if self._tries > TRIES:
            self.give_up()
        return self._tries <= TRIES

    def give_up(self) -> None:
        """Captures no step of this job."""
        self._job.happened(Fact.PAGE_SERVED)

    def captured(self, step: CapturedStep) -> None:
        """Sends the graph of a captured step to the server for its page."""
        job, key = self._job, self._job.step.key
        job.happened(Fact.PAGE_SERVED)
        took_ns = step.step_ns
        step.stretch(job.measured.like(key).stretched or step.stretched)
        settle(step)
        peak, plain_ns = job.measured.base(key)
        try:
            graph = build(
                step,
                name=job.options.name,
                measured_peak_bytes=peak or step.peak_bytes,
                measured_step_ns=plain_ns or sum(op.time_ns for op in step.ops),
            )
            self.asked(job.agent.submit_graph(graph.to_json(), "", EXECUTOR, graph.static_bytes))
        except RepriseError as error:
            job.say(f"the captured step is not shown on the page: {error}")
            return
        plain = f"; a plain one takes {format_duration(plain_ns)}" if plain_ns else ""
        job.say(
            f"step {job.step.number} was captured for the page, once, and took "
            f"{format_duration(took_ns)}{plain}. REPRISE_CAPTURE=0 leaves this out"
        )

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
