# SPDX-License-Identifier: Apache-2.0
"""Plans the graphs of a compiled job as one after a step that was measured, and again when a step
peaks above the budget.

    over = OverBudget(joint)
    todo = over.plan_whole(calls, parts, memory)    # after a step without a plan
    todo = over.above(peak)                         # after a planned step
    if todo.stop: ...train without a plan...
    if todo.compile_again: ...compile all graphs again...

What no joint graph shows is measured in the step without a plan: the optimizer's state, gradients
that are added up, buckets of gradients, what the program makes between forward and backward, and
the optimizer's temporaries. After a step that peaks above the budget all the same, the server is
told how much more its plan needs, and the graphs are compiled again under the plan that it makes in
its place. Where it makes none, training continues without a plan: how often is its decision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from reprise.base.saying import say
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.joint.joint_graph import peak_under, peaks_under, with_loss
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.step_memory import StepMemory
from reprise.torch.joint.whole import Whole, with_held, with_optimizer

# Factor on the bytes that a plan needs beyond what it says: the peaks of the next one are
# elsewhere, and it should not come just as close.
MARGIN = 1.02


class Next(NamedTuple):
    """What the job is to do after a step."""

    # The plan to compile all graphs again with, as it is predicted for this job.
    plan: Plan | None = None
    # Why training continues without a plan; empty if it does not.
    stop: str = ""
    # By part of a model that is compiled in pieces: parts of one kind share their compiled code.
    kinds: dict[int, int] = {}  # noqa: RUF012


class OverBudget:
    """Holds the peaks of compiled steps against the budget, and plans again."""

    def __init__(self, joint: JointPass) -> None:
        # The peak of the last planned step, 0 if it is not known to be within the budget; the one
        # that is predicted for planned steps, 0 before the first step is measured.
        self.measured_peak_bytes = self.predicted_peak_bytes = 0
        self._joint = joint
        self._whole: Whole | None = None  # the graphs that are planned as one
        self._message: dict[str, Any] = {}
        self._beside_bytes = 0  # by how much steps peaked above the prediction

    def plan_whole(
        self, calls: list[int], parts: list[int], memory: StepMemory, optimizer: str
    ) -> Next:
        """Plans all graphs as one after a step that was measured. `calls`: the graphs that its
        forward has called, in order; `parts`: which part of the model each is in; `optimizer`: its
        name. Returns what the job is to do."""
        joint = self._joint
        whole = self._whole = Whole(joint.graphs, calls, parts, memory.backwards)
        message = whole.message(memory.began_live)
        if memory.outside_bytes:
            alone = len(calls) == 1 and memory.outputs_die
            message = with_loss(message, memory.outside_bytes, alone)
        # Ops that ran again already: there was no room for a step without a plan.
        again = whole.numbers({h.number: h.plan.recomputed_ops for h in joint.executor.handles})
        # Held beside the graphs is what was measured between them, or what was seen beyond them in
        # a part of the step. A graph may show more than there was, because what is fused is
        # not made, and the program's own partition saves less: no difference is no proof of 0.
        predicted, there = peaks_under(message, again), memory.peaks
        held = max(
            memory.held_bytes,
            there.forward - predicted.forward,
            there.outside - predicted.outside,
            there.backward - predicted.backward,
        )
        message = with_held(message, held)
        self._message = with_optimizer(message, optimizer, memory.optimizer_peak)
        peak = max(memory.peaks.highest, memory.optimizer_peak)
        self._message["measured_peak_bytes"] = peak_under(self._message, set()) if again else peak
        joint.beside_bytes = held
        plan, why = joint.ask(self._message, joint.budget)
        if plan is None:
            return Next(stop=_without(why))
        return self._apply(plan, plan.budget_bytes)

    def above(self, peak: int) -> Next:
        """Acts on a planned step whose peak is above the budget: has its plan replaced. Returns
        what the job is to do."""
        budget = self._joint.budget_bytes
        self.measured_peak_bytes = 0
        more = int((peak - self.predicted_peak_bytes) * MARGIN)
        self._beside_bytes += more
        self._joint.beside_bytes += more
        todo = self._apply(self._joint.executor.handles[0].plan, budget)
        said = f"a compiled step peaks at {format_bytes(peak)}, above {format_bytes(budget)}: "
        if todo.stop:
            return Next(stop=said + todo.stop)
        say(f"{said}its graphs are planned and compiled again")
        return todo

    def _apply(self, plan: Plan, budget_bytes: int) -> Next:
        """Has all graphs compiled under one plan. Calls that share compiled code run the same ops
        again, and that was not planned: a plan that needs more than the budget for it, or for what
        was measured beside it, is replaced."""
        whole, joint, message = self._whole, self._joint, self._message
        assert whole is not None
        why = ""
        found: Plan | None = plan
        while found is not None:
            decided = whole.split(found.recomputed_ops)
            predicted = peak_under(message, decided.again) + self._beside_bytes
            if predicted > budget_bytes:
                more = int((predicted - found.peak_bytes) * MARGIN)
                found, why = joint.replacement(message, found, more)
                continue
            if why := joint.decide_whole(found, message, decided.graphs, budget_bytes):
                break
            self.predicted_peak_bytes = predicted
            # The planner may have been asked for less, to leave room for what no graph shows.
            said = replace(found, peak_bytes=predicted, budget_bytes=budget_bytes)
            return Next(said, kinds=decided.kinds)
        return Next(stop=_without(why))


def _without(why: str) -> str:
    return f"{why.rstrip('.')}; training continues without a plan"
