# SPDX-License-Identifier: Apache-2.0
"""The plan that needs least, for a job that fits neither within its budget nor without a plan, or
whose program wants the nearest one.

    if asks_for_least(job, rung, smallest, alone=True): ...request it, with the budget LEAST...
    if least_is_too_large(job, rung, plan): ...do not run it...

It is requested once, and the server finds it. Otherwise saved tensors stay in host memory, and the
reason of the refusal says what would fit.
"""

from __future__ import annotations

from reprise.base.budget import Budget
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.room import room_on
from reprise.torch.planning.message import on_the_host

# As a budget: the server's plan that needs least memory.
LEAST = Budget.least()
# Held back inside it, as a share: a step that is checked takes some kilobytes more than others.
SPARE = 0.01


def asks_for_least(job: EagerJob, rung: Rung, smallest: int, *, alone: bool) -> bool:
    """Returns whether the plan that needs least is to be requested for a rung that was refused: not
    again, not where several ranks decide (`alone`: they do not), and not without room for it.
    `smallest`: the smallest budget that is not ruled out, in bytes."""
    if rung.sketch:
        return False
    if not alone or rung.asked_least or not _has_room(job, smallest):
        rung.refused = f"{rung.refused} {on_the_host(rung, job.budget, smallest)}"
        return False
    rung.asked_least, rung.spare_bytes = True, int(smallest * SPARE)
    either = "" if job.host is None else "The job does not fit without a plan either: "
    job.say(f"{rung.refused} {either}requesting the plan that needs least")
    return True


def least_is_too_large(job: EagerJob, rung: Rung, plan: Plan) -> bool:
    """Returns whether there is no room for the plan that needs least; then says why in the rung."""
    if _has_room(job, plan.peak_bytes):
        return False
    would = on_the_host(rung, job.budget, plan.budget_bytes)
    rung.refused = f"The plan that needs least takes {format_bytes(plan.peak_bytes)}. {would}"
    return True


def _has_room(job: EagerJob, needed: int) -> bool:
    """Returns whether the job may have this many bytes in all, as far as is known."""
    room = room_on(job.device)
    return room is None or needed <= job.meter.live() + room.bytes
