# SPDX-License-Identifier: Apache-2.0
"""A compiled model that trains under plans: its real peak against the budget, its gradients against
those of the same model compiled without a plan.

    job = CompiledJob(torch.compile(model), "0.7x", verify_every=50)    # or its parts are compiled
    ...the training loop...
    job.remove()

The model is compiled with plans (joint_pass.py) and, for a reference, once more without: by the
same backend, with the same settings. Inductor fuses what is recomputed with other ops than what is
saved, so whether the bits are the same is found out and not assumed: the first planned step is
checked, as those of the tape are (verify.py). Where a bit differs, the step gets the reference's
gradients, the plan is never used again and training continues without one.

The reference takes the memory of a step without a plan. So the checked step is told as one of
those, at the peak it had; where the device has not so much, nothing is compared. What the plan
itself took in it is measured all the same: where that is above the budget, all is planned again
before a step relies on it. Every n-th step is checked as well where that keeps the budget, or where
checks of gradients were asked for.

The first step compiles without a plan, the second one is measured: it has the optimizer's state.
Then all graphs get one plan, and a budget is of all that is alive, as in an eager job. What follows
when a step peaks above the budget: over_budget.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from reprise.agent.agent import Agent
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.saying import because, say
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.plan.verdict import measured_part
from reprise.torch.check.result import GRADIENTS, VALUES, CheckResult
from reprise.torch.check.verify import Check
from reprise.torch.internals import calls, guard, optimizers
from reprise.torch.internals.ops import outputs_in
from reprise.torch.internals.optimizers import Cycle
from reprise.torch.joint.code import Code
from reprise.torch.joint.executor import JointPlan
from reprise.torch.joint.graph_check import GraphCheck
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.over_budget import Next, OverBudget
from reprise.torch.joint.reporting import Reporting
from reprise.torch.joint.site import pieces_of, site_of
from reprise.torch.joint.step_memory import ReferenceRoom, StepMemory
from reprise.torch.policy import events
from reprise.torch.policy.policy import UNSEEN, Action
from reprise.torch.policy.state import Stage
from reprise.torch.training.job import Job
from reprise.torch.training.loop import TrainingLoop


@dataclass(frozen=True, slots=True)
class _Ended:
    """A step that is over."""

    peak: int  # bytes, without what only this step does
    optimizer: Optimizer  # the last one of the step


class CompiledJob(TrainingLoop):
    """Plans and checks one model that is compiled by `torch.compile`."""

    def __init__(
        self,
        model: nn.Module,
        budget: str | int,
        verify_every: int,
        agent: Agent | None = None,
        verify: str = VALUES,
    ) -> None:
        """Plans `model` from its next call on. `agent`: takes what is reported; None: nobody does.
        `verify`: with GRADIENTS later checks may take more than the budget."""
        site = site_of(model) or pieces_of(model)
        if site is None:
            raise RepriseError("the model is not compiled by torch.compile")
        within = Budget(budget)
        job = Job(model, agent or Agent(None, "", ""), within)
        super().__init__(job)
        self._site = site
        self.told = Reporting(job)
        self.memory = StepMemory(job.device)
        meter = self.memory.meter
        self.joint = JointPass(within, collects=meter is not None)
        self.over = OverBudget(self.joint)
        self.every = verify_every
        self._room = ReferenceRoom(job.device, meter, keeps_budget=verify != GRADIENTS)
        self.code = Code(site, self.joint, self.memory.aside)
        self._cycle = Cycle()
        self._check: Check | GraphCheck | None = None
        self._under_way = False
        self._graphs = self._steps = self._elsewhere = 0
        self._measures = meter is not None  # what the job needs without a plan
        self.code.watched = self.memory if self._measures else None
        self._compared = False  # the step under way
        self._unchecked = True  # the plan there is
        self.checks = 0
        job.carry_out(
            {
                Action.CHECK_GRADIENTS: lambda _: self._begin_check(),
                Action.CHECK_IF_AFFORDABLE: self._check_if_affordable,
                Action.STOP_UNSEEN: lambda _: self._stop(
                    f"training without a plan: {self._unseen()}"
                ),
                Action.PLAN_WHOLE: self._plan_whole,
                Action.JUDGE_PEAK: self._judge_peak,
                Action.COUNT: self._count,
                Action.PEAK_ABOVE: lambda peak: self._follow(self.over.above(peak)),
            }
        )
        self._observe()
        self.joint.install()
        site.arm(self._around)  # from here on it is called
        if site.is_in_pieces and meter is None:
            self._stop(
                "training without a plan: parts of this model are compiled one by one, and the "
                "memory of its steps, which such a plan needs, is not measured here"
            )

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Calling it again does nothing."""
        self.gone()
        optimizers.remove_unused()

    def gone(self) -> None:
        """Ends the job, maybe in the middle of a step, because its model has died."""
        for do in (self._site.remove, self._stop_planning, self.close):
            guard.quietly(do)

    def close(self) -> None:
        """Ends the reports of the job, because it or the program ends. Calling it again does
        nothing."""
        self._leave()
        guard.no_longer(self._broke)
        self._end_reports()

    def _stop_planning(self) -> None:
        """Stops planning what is compiled from now on, and stops measuring steps."""
        check, self._check, self.code.check = self._check, None, None
        self.code.watched = None
        if check is not None:
            guard.quietly(check.stop)
        for do in (self.joint.remove, self.memory.stop):
            guard.quietly(do)

    def _broke(self, error: Exception) -> bool:
        self.code.is_ours = False
        said = super()._broke(error)
        self.job.happened(events.Broke(self.job.fault))
        return said

    def _clear_up(self) -> None:
        self._cleared_up = True
        self._under_way = self.job.busy = False
        guard.quietly(self._stop_planning)
        guard.quietly(self._end_plans, self.job.why)

    @property
    def plan(self) -> Plan | None:
        """The plan of all graphs; None if there is none."""
        return self.joint.plans[0] if self.joint.plans else None

    @property
    def handles(self) -> list[JointPlan]:
        """The plans of the graphs, or the one for all of them."""
        executor = self.joint.executor
        return [] if executor.is_removed else executor.handles

    def _settle(self) -> None:
        """Moves the job on where graphs were compiled since: with a plan, or without one."""
        planned = bool(self.handles) and not self.job.why
        ended = bool(self.job.why or self.joint.why) or self.joint.executor.is_removed
        if planned and self.job.stage is not Stage.PLANNED:
            self.job.happened(events.Fact.PLAN_APPLIED)
        elif ended and not planned and self.job.stage is not Stage.PLAIN:
            self.job.happened(events.PlanningEnded(self.job.why))

    @property
    def standing(self) -> tuple[str, str]:
        """How the model is trained at present, in words, and why."""
        self._settle()
        stage = self.job.stage
        why = self.job.why or next(iter(self.joint.why), "")
        return stage.value, "" if stage is Stage.PLANNED else because(why)

    def figures(self) -> dict[str, Any]:
        """Returns the fields of a report. The budget is that of all graphs, whatever each plan
        was asked to leave."""
        budget = self.joint.budget_bytes
        return {
            **super().figures(),
            "budget_bytes": budget,
            "unplanned_over_budget_steps": self.job.measured.unplanned_over(budget),
            "rungs": len(self.joint.plans),
        }

    # ---- The step -------------------------------------------------------------------

    def _around(self, call: calls.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of the model, with the code that is compiled for this step in the place of
        the program's own. An internal error does not reach the caller (calls.py)."""
        if self.job.broken:
            self._between()
            return call(*args, **kwargs)
        plainly = bool(self.job.why) or self.joint.executor.is_removed
        call.instead(self.code.plain if plainly else self.code.planned)
        if plainly or self.job.busy or self._site.root is None or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return self._forward(call, args, kwargs)

    def _forward(self, call: calls.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._under_way:
            self._begin()
        if isinstance(self._check, Check):
            self._check.enter(args, kwargs)
        self.code.begin()
        if self._measures:
            self.memory.forward()
        out = call(*args, **kwargs)
        if isinstance(self._check, Check):
            self._check.leave(out)
        self.memory.returned(list(outputs_in(out)))
        return out

    def _begin(self) -> None:
        self._under_way, self._compared = True, False
        self._steps += 1
        self.told.begin(self._steps)
        self._graphs = self.joint.seen
        event = events.PlannedStepBegins(
            every=self.every,
            # Every n-th step of the job is checked.
            since=(self._steps - 1) % self.every + 1 if self.every else 0,
            is_known=not self._unchecked,
            is_traced=True,  # there are no ops to record
            shows_values=False,
        )
        if not self._measures:
            self.job.happened(event)
        self.memory.begin()

    def _begin_check(self) -> None:
        model = self._site.root
        assert model is not None
        self._unchecked = False
        if not self._site.is_in_pieces:
            self._check = Check(model, frozenset())
        elif self.code.graphs:
            check = GraphCheck(model, self.code.graphs, self.memory.aside)
            self._check = self.code.check = check
        else:
            self._unchecked_for("its parts were never compiled without a plan")

    def _check_if_affordable(self, _: None) -> None:
        if self._room.affords(self.plan, self.joint.budget_bytes):
            self._begin_check()

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        if not self._under_way or not self._owns(optimizer):
            return
        check, self._check, self.code.check = self._check, None, None
        self.memory.keep_peak()
        if check is None:
            return
        self._compared = True
        if not self.joint.plans or self.job.why:
            check.stop()
            return
        in_step = isinstance(check, GraphCheck)  # which has compared during the backward
        if missing := "" if in_step else self._room.missing(self.plan):
            check.stop()
            self._unchecked_for(missing)
            return
        self.job.busy = True
        began = time.perf_counter_ns()
        try:
            result = check.compare(self.code.plain)
        except Exception as error:  # the reference is ours: out of memory, mostly
            self._unchecked_for(f"the comparison failed ({guard.described(error)})")
        else:
            self._judge(check, result)
        finally:
            self.job.busy = False
            # What the comparison takes is after the step, or in it.
            peak = self.memory.peak() if in_step else self.memory.beside()
            above = peak > self.joint.budget_bytes
            if above:
                self.job.say(
                    "a step whose gradients were compared ran without the plan, too, and peaked "
                    "above the budget"
                )
            self._room.took(peak)
            compared = 0 if in_step and not above else peak
            self.told.compared(compared, time.perf_counter_ns() - began)

    def _unchecked_for(self, why: str) -> None:
        plan = self.plan
        if plan is not None:
            self.job.record.unchecked(plan, why)
        say(f"gradients of a compiled step are not compared: {why}")

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer):
            return
        self.memory.optimizer_ended()
        if not self._cycle.ends(optimizer):
            return
        if not self._under_way:
            self._note_elsewhere()
            return
        self._under_way = False
        peak, own_peak = self.memory.peak(), self.memory.own_peak()
        plan = None if self.job.why or self._measures else self.plan
        recomputed = sum(handle.stats().recomputed for handle in self.handles)
        budget, predicted = self.joint.budget_bytes, self.over.predicted_peak_bytes
        compiled = self.joint.seen != self._graphs
        self.told.ended(peak, plan, not compiled, budget, predicted, recomputed)
        event = events.CompiledStepEnded(
            self._steps,
            graphs=self.joint.seen,
            has_meter=self.memory.meter is not None,
            # One that was compared says that its plan takes too much, or nothing.
            is_quiet=own_peak > budget if self._compared else not compiled,
            is_measured=self._measures,
            has_plan=bool(self.code.calls) if self._measures else bool(self.joint.plans),
        )
        self._settle()
        self.job.happened(event, _Ended(own_peak, optimizer))

    def _plan_whole(self, step: _Ended) -> None:
        """Plans all graphs as one, because a step was measured."""
        self._measures, self.code.watched = False, None
        if not self.handles:
            self.code.keep()
        name, code = optimizers.described(step.optimizer), self.code
        found = self.over.plan_whole(code.calls, code.parts, self.memory, name)
        budget = self.joint.budget_bytes
        if found.plan is not None and step.peak > budget:
            self.job.say(
                f"{self._steps} steps ran before the plan; the one that was measured peaked at "
                f"{format_bytes(step.peak)}, over the budget of {format_bytes(budget)}: a compiled "
                "model is planned after such a step"
            )
        self._follow(found)

    def _note_elsewhere(self) -> None:
        """Notes a step in which the forward of the model was not called."""
        self._elsewhere += 1
        if self._elsewhere == UNSEEN and not self._steps:
            self._stop(
                "training without a plan: the forward of the model that was armed is never called; "
                "arm the module that the training loop calls"
            )

    def _unseen(self) -> str:
        """Returns why there is no joint graph."""
        if self.code.is_asked:
            return (
                "the backend that compiles this model makes no joint graph of forward and "
                'backward, as "inductor" and "aot_eager" do'
            )
        return "torch.compile has compiled no part of this model that is trained"

    # ---- What follows ---------------------------------------------------------------

    def _judge(self, check: Check | GraphCheck, result: CheckResult) -> None:
        if not result.checked:
            self._unchecked_for(result.why_unchecked())
            return
        if self.handles:
            self.job.checked(self._steps, self.handles[0], result)
        self.checks += 1
        if not result.differing:
            return
        if isinstance(check, Check):  # else they were as soon as they were found
            check.put_right()
        for handle in self.handles:
            self.job.condemn(self._steps, handle, result)
        self._stop(
            f"a compiled step: {result.what_differs()} from those of the model compiled without a "
            f"plan ({result.differing[0]} first); the plan is removed and training continues "
            "without one"
        )

    def _judge_peak(self, step: _Ended) -> None:
        """Compares the peak of a planned step with the budget, and does what follows from it."""
        first = not self.over.measured_peak_bytes
        event = events.PlannedStepEnded(is_over=step.peak > self.joint.budget_bytes)
        self.job.happened(event, step.peak)
        said = measured_part(self.job.record.verdict().sentence)
        if first and self.over.measured_peak_bytes and said:
            say(said)

    def _count(self, peak: int) -> None:
        self.over.measured_peak_bytes = peak

    def _follow(self, step: Next) -> None:
        """Compiles again or stops, as the peak of a step calls for."""
        if step.stop:
            self._stop(step.stop)
        if step.plan is not None:
            self.told.applied(step.plan)
            say(self.job.record.prediction(step.plan))
            self._unchecked = True
            self.code.again(step.kinds)

    def _stop(self, why: str) -> None:
        """Trains without a plan from here on, and says why."""
        self._end_plans(why)
        self.code.is_planned = False
        self.job.happened(events.PlanningEnded(why))
        say(why)

    def _end_plans(self, why: str) -> None:
        """Removes all plans, and reports why the job trains without one."""
        if self.handles:
            self.job.withdraw(self.handles, why)
        else:
            self.job.record.without(why)
