# SPDX-License-Identifier: Apache-2.0
"""Planned steps that peak above their budget all the same.

peaks.own(rung, peak)         # of a step, as its budget counts it
peaks.above(rung, peak, left=...)    # a step as captured: asks for a plan with room
peaks.may_exceed(rung)        # would one of many more such steps exceed it?
peaks.ahead(rung)             # asks for a plan with room before one does
peaks.capture_again(...)      # there is none: captures the step again, once
peaks.stays_above(...)        # nor after that: says so
peaks.explaining(rung, peak)  # one that found out why values differed
"""

from __future__ import annotations

from reprise.base.units import format_bytes
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung
from reprise.torch.planning.planning import Planning
from reprise.torch.planning.request import FIRST_LOOK, MARGIN, spared

# An excess is known to the byte if at least this share of it is in use during the whole step, as
# averaged weights are.
STANDS = 0.9


class Peaks:
    """Acts on steps of one session that peak above their budget."""

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._planning = planning
        self._told: set[int] = set()  # rungs whose steps stay above

    def own(self, rung: Rung, peak: int) -> int:
        """Returns the peak of a step, as its budget counts it. A share, as 0.5x, is of the memory
        of the step that was captured: what is alive beside it by now is beside the budget, too."""
        plan, budget = rung.plan, self._job.budget
        if plan is None or peak <= plan.budget_bytes or budget is None or not budget.is_share:
            return peak
        return peak - self._beside(rung)

    def above(self, rung: Rung, peak: int, *, left: bool) -> None:
        """Acts on a step that has peaked above the budget although its forwards are as captured,
        or that has `left` the plan of the largest of several programs: asks the server for a plan
        of the same graph that leaves room for what was exceeded, which the next step waits for.
        What is in use during the whole step is known to the byte; what varies from step to step, as
        the sizes that data decides, may vary more."""
        job, plan = self._job, rung.plan
        assert plan is not None
        if (job.state.several_ranks or rung.exceeds) and not rung.sketch:
            return  # which sees it at the ranks' next meeting, or has said it
        more = peak - plan.peak_bytes
        if self._beside(rung) < more * STANDS:
            more = int(more * MARGIN)
            if self._varies(rung):
                likely = job.measured.under(rung.number).likely_bytes
                more = max(more, likely - plan.peak_bytes, spared(rung.graph))
        if not rung.exceeds:
            job.say(f"{self._text(rung, peak, left)}; requesting a plan that leaves room for it")
        rung.awaited = self._planning.needs_more(rung, more)

    def may_exceed(self, rung: Rung) -> bool:
        """Returns whether one of many more steps like those of a rung's plan is likely to exceed
        the budget. Asked of sizes that the data decides, after 8, 16, 32, ... steps, because the
        more were seen, the better is known how far they spread."""
        plan, steps = rung.plan, self._job.measured.under(rung.number)
        count = steps.count
        if plan is None or count < FIRST_LOOK or count & (count - 1):
            return False
        is_left_alone = rung.final or self._job.state.several_ranks or not self._varies(rung)
        return not is_left_alone and steps.likely_bytes > plan.budget_bytes

    def ahead(self, rung: Rung) -> None:
        """Asks for a plan that leaves room for what steps are likely to need one day, and says
        so. The next step waits for it."""
        assert rung.plan is not None
        steps = self._job.measured.under(rung.number)
        count, likely = steps.count, steps.likely_bytes
        more = likely - rung.plan.peak_bytes
        data = "the data decides sizes within the step"
        why = "micro-batches have several sizes" if rung.uneven else data
        self._job.say(
            f"{why}, and by {count} steps one of many more may peak at {format_bytes(likely)}, "
            f"above {format_bytes(rung.plan.budget_bytes)}; requesting a plan that leaves room "
            "for it"
        )
        rung.awaited = self._planning.needs_more(rung, more)

    @staticmethod
    def _varies(rung: Rung) -> bool:
        return rung.varies or rung.uneven

    def capture_again(self, rung: Rung, peak: int) -> None:
        """Has the step captured again, because no plan of its graph leaves room for it."""
        if rung.exceeds or (self._job.state.several_ranks and not rung.sketch):
            return
        text = f"{self._text(rung, peak)}, and no plan leaves room for it"
        if not rung.sketch:
            self._job.say(f"{text}; the step is captured again")
            self._job.plans.ladder.stale(rung)
        elif rung.number not in self._told:
            self._told.add(rung.number)
            self._job.say(f"{text} before a step is captured")

    def stays_above(self, rung: Rung, peak: int) -> None:
        """Says that steps peak above the budget, and that nothing is done about it any more."""
        if rung.number not in self._told:
            self._told.add(rung.number)
            text = self._text(rung, peak)
            self._job.say(f"{text}. No further plan is made; the report counts such steps")

    def explaining(self, rung: Rung, peak: int) -> None:
        """Says that a step has made every call twice and peaked above the budget by that."""
        self._job.say(
            f"{self._peaked(rung, peak)}. It made every recomputed value twice, to find out why "
            "values differed"
        )

    def _text(self, rung: Rung, peak: int, left: bool = False) -> str:
        known = "its shapes foretell" if rung.sketch else "when the step was captured"
        why = "it left its plan" if left else f"more memory is in use than {known}"
        return f"{self._peaked(rung, peak)}: {why}"

    def _peaked(self, rung: Rung, peak: int) -> str:
        assert rung.plan is not None
        budget = format_bytes(rung.plan.budget_bytes)
        return f"step {self._job.step.number} peaked at {format_bytes(peak)}, above {budget}"

    def _beside(self, rung: Rung) -> int:
        """Returns the bytes that were alive when the step under way began or are alive when it
        ends, and were not when it was captured."""
        job, step = self._job, self._job.step
        begin = rung.beside(step.live_begin, step.missing)
        return max(begin, job.meter.live() - rung.live_end)
