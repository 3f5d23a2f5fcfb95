# SPDX-License-Identifier: Apache-2.0
"""Requests for plans: a step graph and a budget, sent to the server.

budget = own_budget(job, notes)                       # of the program
budget = within_device(job, message, budget)          # no more than this process can have
why = sent(job, executor, rung, message, budget, terms)   # "": the request is under way
on_the_host(rung, budget, smallest)                   # what would fit, where no plan does
asks_for_least(job, rung, smallest, alone=True)       # is the plan that needs least requested?
"""

from __future__ import annotations

import json
from typing import Any

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_percent
from reprise.plan import Plan
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.host_terms import HostTerms
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.room import advice, capacity, in_bytes, room_on, share_of
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
    terms: HostTerms | None,
    more_bytes: int = 0,
) -> str:
    """Asks for a plan of a rung within a budget, and notes the request in the rung; returns "", or
    why the request was not accepted. `terms`: what may leave for host memory; None: nothing. With
    `more_bytes`: for a plan in the place of the rung's, which needs so much more than it says."""
    agent = job.agent
    capabilities, asked = executor.capabilities(rung.graph), budget
    if terms is not None:
        capabilities += terms.link.capabilities()
        stay = terms.staying(rung.graph)
        storages = [{**s, "stays": True} if s["id"] in stay else s for s in message["storages"]]
        message = {**message, "storages": storages}
        if not job.state.several_ranks and len(storages) == len(rung.graph.storages):
            # A share is of what is no state, wherever that is.
            static, peak = message["static_bytes"], message["measured_peak_bytes"]
            message = executor.with_state(message, job.step.optimizers)
            if budget.is_share and static != message["static_bytes"]:
                asked = Budget(budget.of_step(static, peak) or 0)
    try:
        request_id = agent.submit_graph(
            json.dumps(message, separators=(",", ":")).encode(),
            asked,
            capabilities,
            message["static_bytes"],
            reserve_bytes=rung.beside_bytes + rung.spare_bytes,
            replaces=rung.plan.plan_number if rung.plan is not None and more_bytes else 0,
            more_bytes=more_bytes,
            **share_of(asked, job.device, job.meter.live()),
        )
    except RepriseError as error:
        return str(error)
    if request_id is None:
        return agent.why or "no collector is running"
    rung.request_id, rung.asked = request_id, budget
    return ""


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


ON_THE_HOST = "Saved tensors stay in host memory, and steps are slow"


def on_the_host(rung: Rung, budget: Budget | None, smallest: int) -> str:
    """Returns what a job is told that neither fits nor has a plan. `smallest`: the smallest budget
    that is not ruled out, in bytes."""
    graph = rung.graph
    text = f"{ON_THE_HOST}. What would fit: a budget of {format_bytes(smallest)} or more"
    batch = next((shape[0] for shape in rung.key.shapes if shape), 0)
    allowed = None if budget is None else budget.bytes
    if allowed is None:  # a share of what the step needs
        return text
    dynamic = smallest - graph.static_bytes
    fits = int(batch * (allowed - graph.static_bytes) / dynamic) if dynamic > 0 else 0
    if 0 < fits < batch:
        text += f", or a batch of about {fits} instead of {batch}"
    return text


def unsupported(step: CapturedStep) -> str:
    """Returns what in a refused step cannot be planned yet; empty if nothing of the kind is
    known."""
    if not step.filled_by:
        return ""
    return (
        f" Not supported yet: running ops again whose parameters {step.filled_by} writes within "
        "the step. What they make is kept"
    )


# As a budget: the server's plan that needs least memory, for a job that fits neither within its
# budget nor without a plan, or whose program wants the nearest one. It is requested once.
LEAST = Budget.least()
# Held back inside it, as a share: a step that is checked takes some kilobytes more than others.
SPARE = 0.01


# Share of what the data decides, held back until planned steps have shown how far it spreads.
UNKNOWN = 0.2


# Factor on what a step has needed beyond its plan, where it may vary.
MARGIN = 1.5
# Steps of one plan before which nothing is concluded from how far their peaks spread.
FIRST_LOOK = 8


def needed(job: EagerJob, rung: Rung) -> int:
    """Returns the peak that plans of a rung are to leave room for, in bytes, by the steps under its
    present one: their highest, and more where the data decides sizes."""
    plan, steps = rung.plan, job.measured.under(rung.number)
    peak = steps.covered_peak_bytes
    if plan is None or not rung.varies:
        return peak
    if peak > plan.budget_bytes:
        peak = plan.peak_bytes + int(MARGIN * (peak - plan.peak_bytes))
    if steps.count >= FIRST_LOOK:
        peak = max(peak, steps.likely_bytes)
    return peak


def spared(graph: CapturedGraph, plain_peak_bytes: int = 0) -> int:
    """Returns what the first plan of a step holds back in which the data decides sizes: other steps
    have other sizes. `plain_peak_bytes`: the highest of plain steps like it; 0 if not known."""
    return max(0, plain_peak_bytes - graph.step.peak_bytes) + int(UNKNOWN * _chosen(graph))


def halved(graph: CapturedGraph, spare_bytes: int) -> int:
    """Returns what is held back of a step for which no plan leaves `spare_bytes`."""
    return spare_bytes // 2 if spare_bytes > UNKNOWN / 4 * _chosen(graph) > 0 else 0


def _chosen(graph: CapturedGraph) -> int:
    return sum(storage.bytes for storage in graph.storages if storage.chosen and storage.saved)


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


# Of what the share leaves to a step: static memory that grows by less is its input.
GROWN = 0.1


class Share:
    """A budget that is a share of a step, in bytes.

    It is fixed with the first graph that is planned: a share of the largest step known by then.
    Later graphs are planned within the same bytes, however large their own step was, or the budget
    would follow the data. It is raised where a step that needs more comes and has no plan within
    them, and by what is alive beside the steps from then on, which is beside the share. Where such
    a step was foreseen, half as large again as those known, the share is of that one."""

    def __init__(self) -> None:
        self._of = ""  # the budget that was fixed
        self._bytes = self._static = 0
        # By rung: what a share of its own step would be, and the static memory in it.
        self._own: dict[int, tuple[int, int]] = {}

    def within(
        self,
        budget: Budget,
        rung: int,
        message: dict[str, Any],
        largest: int,
        *,
        in_bytes: bool = False,
    ) -> Budget:
        """Returns the budget of a rung's step graph: any other than a share as it is. `largest`:
        the highest peak of plain steps so far; `in_bytes`: a share, too, is given in bytes, because
        what the request holds back would be beside it."""
        if not budget.is_share:
            return budget
        static, peak = int(message["static_bytes"]), int(message["measured_peak_bytes"])
        own = budget.of_step(static, peak) or 0
        if self._of != budget:
            self._of, self._static = budget, static
            self._bytes = max(own, budget.of_step(static, largest) or 0)
        grown = static - self._static
        fixed = self._bytes + (grown if grown > GROWN * (self._bytes - self._static) else 0)
        self._own[rung] = own, static
        return budget if fixed == own and not in_bytes else Budget(fixed)

    def stays(self, rung: int) -> None:
        """Notes that nothing is raised for a rung until its plan is asked for anew: less memory is
        wanted, because it ran out."""
        self._own.pop(rung, None)

    def raised(self, rung: int) -> str:
        """Fixes the share anew with the graph of a rung, if that is more, and returns how; "" if it
        is not."""
        own, static = self._own.pop(rung, (0, 0))
        if own <= self._bytes:
            return ""
        before, self._bytes, self._static = self._bytes, own, static
        return (
            f"nothing fits a larger step in the {format_bytes(before)} that {self._of} was so far: "
            f"it is {format_bytes(self._bytes)} from here on"
        )
