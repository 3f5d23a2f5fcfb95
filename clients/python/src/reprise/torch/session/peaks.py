# SPDX-License-Identifier: Apache-2.0
"""Planned steps that peak above their budget all the same.

peaks.own(rung, peak)         # of a step, as its budget counts it
peaks.above(rung, peak)       # a step as captured: asks for a plan with room, or captures again
peaks.explaining(peak, plan)  # one that found out why values differed
peaks.uncovered()             # one whose input no plan is for
"""

from __future__ import annotations

from reprise.plan import Plan
from reprise.torch.ladder.rung import Rung
from reprise.torch.session.job import Job
from reprise.units import format_bytes

__all__ = ["Peaks"]

# Of what a step needs more: as much stands from its begin to its end where something was added that
# stays, as weights that are averaged.
STANDS = 0.9


class Peaks:
    """Acts on steps of one session that peak above their budget."""

    def __init__(self, session: Job) -> None:
        self._session = session

    def own(self, rung: Rung, peak: int) -> int:
        """Returns the peak of a step, as its budget counts it. A share, as 0.5x, is of the memory
        of the step that was captured: what is alive beside it by now is beside the budget, too."""
        plan, budget = rung.plan, self._session.budget or ""
        if plan is None or peak <= plan.budget_bytes or not budget.endswith("x"):
            return peak
        return peak - self._beside(rung)

    def above(self, rung: Rung, peak: int) -> None:
        """Acts on a step that has peaked above the budget although its forwards are as captured.
        If more memory is in use during the whole step, asks the server, once, for a plan that
        leaves room for it, which the next step waits for. Otherwise the program does something
        beside the model's forward that it did not do before: captures the step again."""
        session, plan = self._session, rung.plan
        assert plan is not None
        text = (
            f"step {session.step.number} peaked at {format_bytes(peak)}, above "
            f"{format_bytes(plan.budget_bytes)}: more memory is in use than when the step was "
            "captured"
        )
        if session.planning.coordinator is not None:
            return  # which sees it at the ranks' next meeting
        if rung.recaptured:
            if not rung.given_up:
                rung.given_up = True
                session.say(f"{text}. No further plan is made; the report counts such steps")
            return
        more = peak - plan.peak_bytes
        if rung.replaced or self._beside(rung) < more * STANDS:
            session.say(f"{text}, but not in every step; the step is captured again")
            rung.recaptured = True
            session.ladder.stale(rung)
            return
        session.say(f"{text}; requesting a plan that leaves room for it")
        rung.replaced = True
        rung.awaited = session.planning.needs_more(rung, more)

    def explaining(self, peak: int, plan: Plan) -> None:
        """Says that a step has made every call twice and peaked above the budget by that."""
        self._session.say(
            f"step {self._session.step.number} peaked at {format_bytes(peak)}, above "
            f"{format_bytes(plan.budget_bytes)}. It made every recomputed value twice, to find out "
            "why values differed"
        )

    def uncovered(self) -> None:
        """Says that a step whose input no plan is for has peaked above the budget."""
        self._session.say(
            "steps with an input larger than any that has a plan peak above the budget"
        )

    def _beside(self, rung: Rung) -> int:
        """Returns the bytes that were alive when the step under way began or are alive when it
        ends, and were not when it was captured."""
        session, captured = self._session, rung.graph.step
        begin = session.step.live_begin - captured.live_begin
        return max(0, begin, session.meter.live() - captured.live_end)
