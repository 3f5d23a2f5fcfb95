# SPDX-License-Identifier: Apache-2.0
"""Steps with more alive beside them than when they were captured.

    beside = Beside(job, planning)
    rung = beside.rung_for(rung)  # the one whose plan the step that begins runs under
    rung = beside.in_graph(rung)  # the one under which it is captured into a CUDA graph

Programs keep their gradients in some steps and drop them in others, and a captured step has seen
one of both. Where what is alive beside a step does not fit its budget in bytes with the plan that
is there, another plan of the same step is asked for, and the step waits for it. Steps like it run
under that one, and the others under theirs. It is of this rank alone: what a plan changes runs no
collective.

A share is of the step alone: what is beside it does not count.
"""

from __future__ import annotations

from typing import Any

from reprise.base.budget import Budget
from reprise.base.units import format_bytes
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.ranks import coming
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.cuda_meter import blas_workspace_bytes
from reprise.torch.meter.state import missing_gradients
from reprise.torch.planning.planning import Planning
from reprise.torch.planning.request import LEAST
from reprise.torch.tape.compile_copies import uses_host
from reprise.torch.tape.executor import TapePlan

# So many plans of one step may leave ever more room for what is alive beside it.
MOST = 8


class Beside:
    """Chooses between the plans of one step of a job, by what is alive when it begins."""

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._planning = planning

    def rung_for(self, rung: Rung) -> Rung:
        """Returns the rung whose plan the step that begins runs under: this one, or one of the same
        step with a plan that leaves more room."""
        job, plan = self._job, rung.plan
        if rung.sketch or plan is None or job.budget is None or job.budget.is_share:
            return rung
        missing = missing_gradients(job.model) if job.state.several_ranks else 0
        beside = rung.beside(job.meter.live(), missing)
        if not rung.lacks(beside):
            return rung
        known = rung.roomier
        if known is not None and known.awaited:
            self._planning.take_awaited(known)
        few = rung.roomiers < MOST
        if known is None or (few and beside > known.held_bytes and known.lacks(beside)):
            known = self._asked(rung, beside)
        return known if known.tape is not None else rung

    def _asked(self, rung: Rung, beside: int) -> Rung:
        """Asks for a plan that leaves room for so many bytes, and returns its rung, which has none
        if there is none."""
        job, plan = self._job, rung.plan
        assert plan is not None
        if job.state.several_ranks:
            coming()  # the others may be at their next meeting before this one is
        made = rung.roomier = job.plans.ladder.beside(rung, beside)
        rung.roomiers += 1
        job.say(
            f"{format_bytes(beside)} are alive beside step {job.step.number} that were not when it "
            "was captured; requesting a plan for such steps"
        )
        message = rung.message()
        is_captured = rung.foreseen is None
        if is_captured and rung.graph.step.missing_bytes and not missing_gradients(job.model):
            adding, gradients = rung.graph.message_of_adding()
            if gradients <= made.held_bytes:
                message, made.spare_bytes = adding, made.spare_bytes - gradients
        found = self._nearest(made, message, plan.budget_bytes)
        if isinstance(found, TapePlan):
            self._planning.apply(made, found)
        else:
            job.say(f"{found.rstrip('.')}. Such steps run under the previous plan")
        return made

    def in_graph(self, rung: Rung) -> Rung | str:
        """Returns a rung of the same step with a plan under which it can be captured into a CUDA
        graph: it draws no random number again, and has room for the workspaces that cuBLAS
        allocates for the stream of the capture. A share is of the step alone, so they are added to
        it. Waits for that plan; returns why there is none."""
        job, plan = self._job, rung.plan
        assert plan is not None
        if rung.foreseen is not None:
            return "no step with an input as large was captured yet"
        if uses_host(plan):
            return "its plan sends tensors to host memory"
        held, budget_bytes = blas_workspace_bytes(job.device), plan.budget_bytes
        if job.budget is not None and job.budget.is_share:
            budget_bytes += held
        else:
            # The batches of all micro-batches are there from the start.
            held += sum(one.bytes for one in rung.graph.batch) * (rung.forwards - 1)
            held += rung.beside(job.meter.live(), 0)
        made = job.plans.ladder.beside(rung, held)
        found = self._nearest(made, rung.graph.message_of_kept_draws(), budget_bytes)
        if isinstance(found, str):
            return f"no plan is for that: {found.rstrip('.')}"
        made.planned = found
        job.measured.new_plan(made.number)
        self._planning.announce(made)
        return made

    def _nearest(self, rung: Rung, message: dict[str, Any], budget_bytes: int) -> TapePlan | str:
        """Asks for the plan of a rung within a budget, and waits for it; where nothing fits, for
        the one that needs least, whose steps exceed the budget. Returns it, or why there is
        none."""
        planning = self._planning
        planning.send(rung, message, Budget(budget_bytes))
        found = planning.wait_for(rung)
        if isinstance(found, TapePlan):
            return found
        planning.send(rung, message, LEAST)
        least = planning.wait_for(rung, budget_bytes)
        if isinstance(least, str):
            return found
        rung.exceeds = True
        self._job.say(
            f"{found.rstrip('.')}. Such steps take {format_bytes(least.plan.peak_bytes)}, by the "
            "plan that needs least"
        )
        return least
