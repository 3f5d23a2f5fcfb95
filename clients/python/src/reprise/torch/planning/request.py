# SPDX-License-Identifier: Apache-2.0
"""Requests for plans: a step graph and a budget, sent to the server.

budget = own_budget(job, notes)                       # of the program
budget = within_device(job, message, budget)          # no more than this process can have
why = sent(job, executor, rung, message, budget)      # "": the request is under way
reply = replied(job, rung, wait_s)
"""

from __future__ import annotations

import json
from typing import Any

from reprise.agent.agent import PlanReply
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_percent
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.room import advice, capacity, in_bytes, share_of
from reprise.torch.planning.notes import Notes
from reprise.torch.tape.executor import TapeExecutor

# The allocator takes memory from the driver in pieces of 20 MiB for most tensors, of 2 MiB for
# those below 1 MiB, and cannot use what is left of the device when the next piece does not fit.
PIECES = (20 << 20) + (2 << 20)


def own_budget(job: EagerJob, notes: Notes) -> Budget:
    """Returns the program's budget: less after a start that ran out of memory."""
    assert job.budget is not None
    tighter = notes.tighter
    if tighter < 1:
        job.say(
            f"an earlier start ran out of memory: requesting a plan within "
            f"{format_percent(tighter)} of the budget"
        )
    return job.budget.scaled(tighter)


def sent(
    job: EagerJob,
    executor: TapeExecutor,
    rung: Rung,
    message: dict[str, Any],
    budget: Budget,
    more_bytes: int = 0,
) -> str:
    """Asks for a plan of a rung within a budget, and notes the request in the rung; returns "", or
    why the request was not accepted. With `more_bytes`: for a plan in the place of the rung's,
    which needs so much more than it says."""
    agent = job.agent
    try:
        request_id = agent.submit_graph(
            json.dumps(message, separators=(",", ":")).encode(),
            budget,
            executor.capabilities(rung.graph),
            message["static_bytes"],
            reserve_bytes=rung.beside_bytes + rung.spare_bytes,
            replaces=rung.plan.plan_number if rung.plan is not None and more_bytes else 0,
            more_bytes=more_bytes,
            **share_of(budget, job.device, job.meter.live()),
        )
    except RepriseError as error:
        return str(error)
    if request_id is None:
        return agent.why or "no collector is running"
    rung.request_id = request_id
    return ""


def replied(job: EagerJob, rung: Rung, wait_s: float = 0) -> PlanReply:
    """Returns what the server has for a rung that this process asked for, after `wait_s` seconds
    at most."""
    agent = job.agent
    if rung.request_id is None:
        return PlanReply("refused", why=rung.refused or agent.why)
    try:
        if wait_s:
            return agent.wait_plan(rung.request_id, rung.answered, wait_s)
        return agent.poll_plan(rung.request_id, rung.answered)
    except RepriseError as error:
        return PlanReply("refused", why=f"training without a plan: {error}")


def within_device(job: EagerJob, message: dict[str, Any], budget: Budget) -> Budget:
    """Returns the budget; a smaller one on a GPU that has less for this process than that and what
    its allocator takes beyond the bytes that are asked of it: rounding and fragments, as measured
    so far, and one more piece of each size."""
    if job.device.type != "cuda":
        return budget
    known = in_bytes(budget, job.device, job.meter.live())
    asked = known.of_step(int(message["static_bytes"]), message["measured_peak_bytes"])
    there, beyond = capacity(job.device), job.measured.beyond_bytes + PIECES
    if asked is None or asked + beyond <= there or beyond >= there:
        return budget
    job.say(
        f"requesting a plan within {format_bytes(there - beyond)} instead of "
        f"{format_bytes(asked)}: this process can have {format_bytes(there)} of "
        f"{job.device}, and the allocator may take {format_bytes(beyond)} more than is "
        f"requested{advice(job.device)}"
    )
    return Budget(there - beyond)
