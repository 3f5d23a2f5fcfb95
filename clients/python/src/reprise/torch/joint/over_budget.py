# SPDX-License-Identifier: Apache-2.0
"""What follows when the steps of a compiled job peak above their budget.

    over = OverBudget(joint)
    todo = over.above(over.own(peak, began_live))   # after a planned step
    todo = over.plan_whole(peak, began_live)        # after a step without a plan, with graph breaks
    if todo.stop: ...train without a plan...
    if todo.compile_again: ...compile all graphs again...

What a joint graph does not show is measured: the optimizer's state, gradients, what the program
makes between forward and backward. After a step that peaks above the budget the server is told how
much more its plans need, and the graphs are compiled again under the plans that it makes in their
place. Where it makes none, training continues without a plan: how often is its decision.

A share such as 0.5x is of one graph's memory. Where graph breaks make several graphs, that is of no
use: the step after the first runs without a plan, and is measured; then all graphs get one plan
within that share of it (whole.py), and are compiled again. So it is with any budget of a model
whose parts are compiled one by one, which begins with a step that is measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from reprise.plan import Plan
from reprise.saying import say
from reprise.torch.joint.joint_graph import with_loss
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.peak import peak_under
from reprise.torch.joint.whole import Whole
from reprise.units import format_bytes

__all__ = ["Next", "OverBudget"]

# Factor on the bytes that a plan needs beyond what it says: the peaks of the next one are
# elsewhere, and it should not come just as close.
MARGIN = 1.02


class Next(NamedTuple):
    """What the job is to do after a step."""

    compile_again: bool = False
    # No step was compared under the plan that the graphs will be compiled with.
    unchecked: bool = False
    # Why training continues without a plan; empty if it does not.
    stop: str = ""
    # By part of a model that is compiled in pieces: parts of one kind share their compiled code.
    kinds: dict[int, int] = {}  # noqa: RUF012


class OverBudget:
    """Holds the peaks of compiled steps against the budget, and plans again."""

    def __init__(self, joint: JointPass) -> None:
        self.measured_peak_bytes = self.predicted_peak_bytes = 0
        self._joint = joint
        # Several graphs that are planned as one, with what a step without a plan needs: the bytes
        # alive when it begins, and its peak.
        self._whole: Whole | None = None
        self._message: dict[str, Any] = {}
        self._static_bytes = self._base_bytes = 0
        # Ops of the whole that are recomputed, and by how much steps peaked above the prediction.
        self._recomputed: set[int] = set()
        self._beside_bytes = 0

    def own(self, peak: int, began_live: int) -> int:
        """Returns the part of a peak that the budget is about. `began_live`: the bytes that were
        alive when the step began."""
        if self._joint.absolute:
            return peak
        if self._whole is not None:
            return peak - max(0, began_live - self._static_bytes)
        # A share of one graph's memory: what else is alive when a step begins is beside it.
        return peak - max(0, began_live - self._joint.inputs_bytes)

    def needs_whole(self, calls: list[int], parts: list[int]) -> bool:
        """Returns whether the graphs have to be planned as one: the parts of the model are compiled
        one by one, or the budget is a share of the whole job's memory and the forward has called
        several graphs. Then the next step runs without a plan, and its peak is given to
        `plan_whole`. `calls`: the graphs called, in order; `parts`: which part each is in."""
        several = calls if self._joint.in_pieces else len(calls) > 1 and not self._joint.absolute
        if self._whole is not None or not several:
            return False
        self._whole = Whole(self._joint.graphs, calls, parts)
        return True

    def plan_whole(self, peak: int, began_live: int) -> Next:
        """Plans several graphs as one after a step without a plan, which has shown what the whole
        job needs. Returns what the job is to do."""
        assert self._whole is not None
        self._static_bytes, self._base_bytes = began_live, peak
        self._message = self._whole.message(began_live, peak)
        plan, why = self._joint.ask(self._message, self._joint.budget)
        if plan is None:
            return Next(stop=_without(why))
        return self._apply_whole(plan, plan.budget_bytes)

    def above(self, peak: int, outside_bytes: int = 0, outputs_die: bool = False) -> Next:
        """Acts on a planned step whose own peak is above the budget: has its plans replaced.
        Returns what the job is to do. The other arguments are those of `predict`."""
        budget = self._joint.budget_bytes
        self.measured_peak_bytes = 0
        handles = self._joint.executor.handles
        if self._whole is not None:
            self._beside_bytes += int((peak - self.predicted_peak_bytes) * MARGIN)
            return self._apply_whole(handles[0].plan, budget)
        modelled = self._modelled(outside_bytes, outputs_die)
        self._beside_bytes = max(0, peak - modelled) if modelled else 0
        more = int((peak - max(handle.plan.peak_bytes for handle in handles)) * MARGIN)
        plans = []
        for handle in handles:
            plan, why = self._joint.replacement(handle.message, handle.plan, more)
            if plan is None:
                return Next(stop=self._still_above(peak, why))
            plans.append(plan)
        if why := self._joint.decide_each(plans):
            return Next(stop=self._still_above(peak, why))
        say(
            f"a compiled step peaks at {format_bytes(peak)}, above {format_bytes(budget)}: more "
            "memory is in use outside its graphs than was known; they are planned and compiled "
            "again"
        )
        return Next(compile_again=True, unchecked=True)

    def _apply_whole(self, plan: Plan, budget_bytes: int) -> Next:
        """Has all graphs compiled under one plan. Calls that share compiled code run the same ops
        again, and that was not planned: a plan that needs more than the budget for it, or for what
        was measured beside it, is replaced."""
        whole, joint, message = self._whole, self._joint, self._message
        assert whole is not None
        why = ""
        held = max(0, self._base_bytes - peak_under(message, set())) + self._beside_bytes
        found: Plan | None = plan
        while found is not None:
            decided = whole.split(found.recomputed_ops)
            predicted = peak_under(message, decided.again) + held
            if predicted > budget_bytes:
                more = int((predicted - found.peak_bytes) * MARGIN)
                found, why = joint.replacement(message, found, more)
                continue
            if why := joint.decide_whole(found, message, decided.graphs, budget_bytes):
                break
            self.predicted_peak_bytes, self._recomputed = predicted, decided.again
            say(found.sentence)
            return Next(compile_again=True, unchecked=True, kinds=decided.kinds)
        return Next(stop=_without(why))

    def _still_above(self, peak: int, why: str) -> str:
        """Returns why training continues without a plan after a step with this peak."""
        return _without(
            f"compiled steps peak at {format_bytes(peak)}, above the budget of "
            f"{format_bytes(self._joint.budget_bytes)}: {why}"
        )

    def predict(self, outside_bytes: int, outputs_die: bool) -> None:
        """Predicts the peak of the steps from one that ran under their plan; keeps what is
        predicted already where there are several plans.

        `outside_bytes`: what the program makes between the forward and its first gradient;
        `outputs_die`: the outputs are dead by then."""
        if modelled := self._modelled(outside_bytes, outputs_die):
            self.predicted_peak_bytes = modelled + self._beside_bytes

    def _modelled(self, outside_bytes: int, outputs_die: bool) -> int:
        """Returns the peak of the plan with the loss as it was measured; 0 if there are several
        plans, of which none shows the peak of the step."""
        if len(self._joint.plans) != 1:
            return 0
        (plan,), (message,) = self._joint.plans, self._joint.planned
        message = with_loss(message, outside_bytes, outputs_die)
        recomputed = self._recomputed or set(plan.recomputed_ops)
        measured: int = message.get("measured_peak_bytes", 0)
        return peak_under(message, recomputed) + max(0, measured - peak_under(message, set()))


def _without(why: str) -> str:
    return f"{why.rstrip('.')}; training continues without a plan"
