# SPDX-License-Identifier: Apache-2.0
"""What follows when the steps of a compiled job peak above their budget.

    over = OverBudget(joint)
    todo = over.above(over.own(peak, began_live))   # after a planned step
    todo = over.plan_whole(peak, began_live)        # after a step without a plan, with graph breaks
    if todo.stop: ...train without a plan...
    if todo.compile_again: ...compile all graphs again...

What a joint graph does not show is measured: the optimizer's state, gradients, what the program
makes between forward and backward. A step that peaks above the budget has the graphs compiled again
with that much less to spend; where no plan is left in it, training continues without one.

A share such as 0.5x is of one graph's memory. Where graph breaks make several graphs, that is of no
use: the step after the first runs without a plan, and is measured; then all graphs get one plan
within that share of it (whole.py), and are compiled again.
"""

from __future__ import annotations

from typing import NamedTuple

from reprise.saying import say
from reprise.torch.joint.joint_graph import with_loss
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.peak import peak_under
from reprise.torch.joint.whole import Whole
from reprise.units import format_bytes, format_percent

__all__ = ["Next", "OverBudget"]

# Plans in all, after which a job whose steps still peak above the budget trains without one.
TRIES = 4
# Factor on the bytes above the budget that the next plan has less: its peaks are elsewhere, and it
# should not come just as close.
MARGIN = 1.02


class Next(NamedTuple):
    """What the job is to do after a step."""

    compile_again: bool = False
    # No step was compared under the plan that the graphs will be compiled with.
    unchecked: bool = False
    # Why training continues without a plan; empty if it does not.
    stop: str = ""


class OverBudget:
    """Holds the peaks of compiled steps against the budget, and plans again."""

    def __init__(self, joint: JointPass) -> None:
        self.measured_peak_bytes = self.predicted_peak_bytes = 0
        self._joint = joint
        self._tries = 0
        # Several graphs that are planned as one, with what a step without a plan needs: the bytes
        # alive when it begins, and its peak.
        self._whole: Whole | None = None
        self._static_bytes = self._base_bytes = 0
        # Ops of the whole that are recomputed, and by how much steps peaked above the prediction.
        self._recomputed: set[int] = set()
        self._beside_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether several graphs are planned as one."""
        return self._whole is not None

    def own(self, peak: int, began_live: int) -> int:
        """Returns the part of a peak that the budget is about. `began_live`: the bytes that were
        alive when the step began."""
        if self._whole is not None:
            return peak - max(0, began_live - self._static_bytes)
        if not self._joint.absolute:
            # A share of one graph's memory: what else is alive when a step begins is beside it.
            return peak - max(0, began_live - self._joint.inputs_bytes)
        return peak

    def needs_whole(self, calls: list[int]) -> bool:
        """Returns whether the graphs have to be planned as one: the budget is a share of the whole
        job's memory, and the forward has called several graphs. Then the next step runs without a
        plan, and its peak is given to `plan_whole`. `calls`: the graphs called, in order."""
        if self._joint.absolute or self._whole is not None or len(calls) < 2:
            return False
        self._whole = Whole(self._joint.graphs, calls)
        return True

    def plan_whole(self, peak: int, began_live: int) -> Next:
        """Plans several graphs as one after a step without a plan, which has shown what the whole
        job needs. Returns what the job is to do."""
        self._static_bytes, self._base_bytes = began_live, peak
        return self._plan_whole(self._joint.budget)

    def above(self, peak: int) -> Next:
        """Plans again after a planned step whose own peak is above the budget. Returns what the job
        is to do."""
        budget = self._joint.budget_bytes
        self.measured_peak_bytes = 0
        self._tries += 1
        if self._tries > TRIES:
            return Next(
                stop=f"compiled steps still peak at {format_bytes(peak)}, above the budget of "
                f"{format_bytes(budget)}, after {TRIES} plans; training continues without one"
            )
        if self._whole is not None:
            self._beside_bytes += int((peak - self.predicted_peak_bytes) * MARGIN)
            return self._plan_whole(str(budget))
        self._joint.reserve(int((peak - budget) * MARGIN))
        say(
            f"a compiled step peaks at {format_bytes(peak)}, above {format_bytes(budget)}: more "
            "memory is in use outside its graphs than was known; they are planned and compiled "
            "again"
        )
        return Next(compile_again=True, unchecked=True)

    def _plan_whole(self, budget: str) -> Next:
        """Asks for one plan for all graphs, and for a smaller peak while it is not within the
        budget: what one call of a graph recomputes, all calls of it do, and that was not planned.
        """
        whole = self._whole
        assert whole is not None
        more = self._beside_bytes
        message = whole.message(self._static_bytes + more, self._base_bytes + more)
        plan, why = self._joint.ask(message, budget)
        budget_bytes = plan.budget_bytes if plan is not None else 0
        for _ in range(TRIES):
            if plan is None:
                break
            decided = whole.split(plan.recomputed_ops)
            all_calls = whole.all_of(decided)
            held = max(0, self._base_bytes + more - peak_under(message, set()))
            predicted = peak_under(message, all_calls) + held
            if predicted <= budget_bytes:
                why = self._joint.decide(plan, message, decided, budget_bytes)
                if why:
                    break
                self.predicted_peak_bytes, self._recomputed = predicted, all_calls
                say(plan.sentence)
                return Next(compile_again=True, unchecked=True)
            tighter = plan.budget_bytes - int((predicted - budget_bytes) * MARGIN)
            plan, why = self._joint.ask(message, str(tighter))
        why = why.rstrip(".") or "no plan is one for all calls of a graph"
        return Next(stop=f"{why}; training continues without a plan")

    def status(self, peak: int, outside_bytes: int, outputs_die: bool) -> str:
        """Returns a sentence about a peak within the budget beside the prediction, which it makes.

        `outside_bytes`: what the program makes between the forward and its first gradient;
        `outputs_die`: the outputs are dead by then."""
        off = ""
        if len(self._joint.plans) == 1:
            (plan,), (message,) = self._joint.plans, self._joint.planned
            message = with_loss(message, outside_bytes, outputs_die)
            recomputed = self._recomputed or set(plan.recomputed_ops)
            held = max(0, message.get("measured_peak_bytes", 0) - peak_under(message, set()))
            self.predicted_peak_bytes = peak_under(message, recomputed) + held
            over = peak / self.predicted_peak_bytes - 1
            off = f" ({format_percent(over, sign=True)} of predicted)"
        budget = self._joint.budget_bytes
        return f"compiled: measured {format_bytes(peak)}{off} of {format_bytes(budget)}"
