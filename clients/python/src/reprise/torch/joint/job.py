# SPDX-License-Identifier: Apache-2.0
"""A compiled model that trains under plans: its real peak against the budget, its gradients against
those of the same model compiled without a plan.

    job = CompiledJob(torch.compile(model), "0.7x", verify_every=50)
    ...the training loop...
    job.remove()

The model is compiled with plans (joint_pass.py) and, for a reference, once more without: by the
same backend, with the same settings. Inductor fuses what is recomputed with other ops than what is
saved, so whether the bits are the same is found out and not assumed: the first planned step is
checked, as those of the tape are (verify.py). Where a bit differs, the step gets the reference's
gradients, the plan is never used again and training continues without one.

The reference takes the memory of a step without a plan. So the checked step is told as one of
those, at the peak it had; where the device has not so much, nothing is compared. Every n-th step is
checked as well where that keeps the budget, or where checks of gradients were asked for.

What follows when a step peaks above the budget: over_budget.py.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reprise.agent import Agent
from reprise.errors import RepriseError
from reprise.plan import Plan
from reprise.saying import because, say
from reprise.torch.check.result import GRADIENTS, VALUES, CheckResult
from reprise.torch.check.verify import Check
from reprise.torch.internals import calls, guard, optimizers
from reprise.torch.internals.cycle import Cycle
from reprise.torch.internals.ops import outputs_in
from reprise.torch.joint.executor import JointPlan
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.over_budget import Next, OverBudget
from reprise.torch.joint.reporting import Reporting
from reprise.torch.joint.site import site_of
from reprise.torch.meter.meter import Meter, open_meter
from reprise.torch.meter.room import room_on
from reprise.torch.meter.state import model_device, start_counting
from reprise.torch.policy.events import (
    CompiledStepEnded,
    PlannedStepBegins,
    PlannedStepEnded,
    State,
)
from reprise.torch.policy.policy import Action, decide
from reprise.torch.policy.stage import Stage
from reprise.torch.training.loop import TrainingLoop
from reprise.units import check_budget, format_bytes

__all__ = ["CompiledJob"]


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
        site = site_of(model)
        if site is None:
            raise RepriseError("the model is not compiled by torch.compile")
        within = check_budget(budget)
        super().__init__(model, agent or Agent(None, "", ""), within)
        self._site = site
        self.told = Reporting(self.agent, self.measured, self.record)
        self._device = model_device(model)
        self._meter = _exact_meter(self._device)
        self.joint = JointPass(within, only_when_told=True)
        self.over = OverBudget(self.joint)
        self.every = verify_every
        self._within = verify != GRADIENTS  # later checks keep the budget
        self._compared_bytes = 0  # the peak of a step that was compared
        self._plain = self._compiled(planned=False)
        self._call = self._compiled(planned=True)
        self._cycle = Cycle()
        self._check: Check | None = None
        self._under_way = False
        self._compiles = False  # its backend was given something
        self._began_live = self._graphs = self._steps = 0
        self._calls: list[int] = []  # graphs that the last forward has called, in order
        self._measures = False  # what the job needs without a plan
        self._judged = self._said_once = False
        self._unchecked = True  # the plan there is
        self._outputs: list[weakref.ref[Any]] = []
        self._outputs_die = False  # before the backward reaches the graph
        self._forward_peak = self._outside_bytes = 0
        self.checks = 0
        self._why = ""  # there is no plan any more
        self._observe()
        self.joint.install()
        site.arm(self._around)  # from here on it is called

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Calling it again does nothing."""
        self._gone()
        optimizers.remove_unused()

    def _gone(self) -> None:
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
        check, self._check = self._check, None
        for do in (
            self.joint.remove,
            *((check.stop,) if check is not None else ()),
            *((self._meter.stop,) if self._meter is not None else ()),
        ):
            guard.quietly(do)

    def _clear_up(self) -> None:
        self._cleared_up = True
        self._under_way = self.busy = False
        guard.quietly(self._stop_planning)
        guard.quietly(self._end_plans, self.why)

    @property
    def why(self) -> str:
        """Why training continues without a plan; empty if it does not."""
        return self.fault or self._why

    @property
    def measured_peak_bytes(self) -> int:
        """The peak of the last planned step; 0 if none is known to be within the budget."""
        return self.over.measured_peak_bytes

    @property
    def predicted_peak_bytes(self) -> int:
        """The peak that was predicted for planned steps; 0 before the first one is measured."""
        return self.over.predicted_peak_bytes

    @property
    def plan(self) -> Plan | None:
        """The plan of the last graph that has one; None if there is none."""
        return self.joint.plans[-1] if self.joint.plans else None

    @property
    def handles(self) -> list[JointPlan]:
        """The plans of the graphs, or the one for all of them."""
        executor = self.joint.executor
        return [] if executor.is_removed else executor.handles

    @property
    def state(self) -> State:
        """Where the job is, as the policy sees it."""
        if self.handles and not self.why:
            return State(Stage.PLANNED)
        ended = self.why or self.joint.why or self.joint.executor.is_removed
        return State(Stage.PLAIN if ended else Stage.WARMUP)

    @property
    def standing(self) -> tuple[str, str]:
        """How the model is trained at present, in words, and why."""
        stage = self.state.stage
        why = self.why or next(iter(self.joint.why), "")
        return stage.value, "" if stage is Stage.PLANNED else because(why)

    def figures(self) -> dict[str, Any]:
        """Returns the fields of a report. The budget is that of all graphs, whatever each plan
        was asked to leave."""
        plans = len(self.joint.plans)
        return {**super().figures(), "budget_bytes": self.joint.budget_bytes, "rungs": plans}

    # ---- The step -------------------------------------------------------------------

    def _around(self, call: calls.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of the model, with the code that is compiled for this step in the place of
        the program's own. An internal error does not reach the caller (calls.py)."""
        if self.broken:
            self._between()
            return call(*args, **kwargs)
        plainly = bool(self.why) or self.joint.executor.is_removed
        if plainly or self.busy or self._site.root is None or not torch.is_grad_enabled():
            return call.instead(self._plain if plainly else self._call)(*args, **kwargs)
        call.instead(self._plain if self._measures else self._call)
        return self._forward(call, args, kwargs)

    def _forward(self, call: calls.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        root = self._site.root
        if not self._under_way and root is not None:
            self._begin(root)
        if self._check is not None:
            self._check.enter(args, kwargs)
        self._calls = []
        out = call(*args, **kwargs)
        if self._check is not None:
            self._check.leave(out)
        outputs = list(outputs_in(out))
        self._outputs = [weakref.ref(t.untyped_storage()) for t in outputs]
        if self._meter is not None and not self.measured_peak_bytes:
            self._watch_loss(self._meter, outputs)
        return out

    def _watch_loss(self, meter: Meter, outputs: list[Tensor]) -> None:
        """Measures what the program makes between the forward and its first gradient, which no
        graph shows."""
        self._forward_peak, live = meter.peak(), meter.live()
        meter.reset_peak()
        own = sum(t.untyped_storage().nbytes() for t in outputs if t.requires_grad)

        def arrived(_: Tensor) -> None:
            if not self._outside_bytes:
                self._outside_bytes = max(1, meter.peak() - live - own)
                self._outputs_die = all(known() is None for known in self._outputs)

        self._outside_bytes = 0
        for tensor in outputs:
            if tensor.requires_grad:
                tensor.register_hook(guard.quiet(arrived))

    def _begin(self, model: nn.Module) -> None:
        self._under_way = True
        self._steps += 1
        self.told.begin(self._steps)
        self._graphs = self.joint.seen
        event = PlannedStepBegins(
            every=self.every,
            # Every n-th step of the job is checked.
            since=(self._steps - 1) % self.every + 1 if self.every else 0,
            is_known=not self._unchecked,
            is_traced=True,  # there are no ops to record
            shows_values=False,
        )
        for action in () if self._measures else decide(self.state, event):
            if action is Action.CHECK_GRADIENTS or self._affords_check():
                self._unchecked = False
                self._check = Check(model, frozenset())
        if self._meter is not None:
            # The program may still hold what the last forward returned, and drops it in this step.
            old = [storage for known in self._outputs if (storage := known()) is not None]
            self._began_live = self._meter.live() - sum(storage.nbytes() for storage in old)
            del old
            self._meter.reset_peak()
            self._forward_peak = 0

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        check, self._check = self._check, None
        if not self._under_way or not self._owns(optimizer):
            self._check = check
            return
        self._judged = check is None and self.joint.seen == self._graphs
        if check is None:
            return
        if not self.joint.plans or self.why:
            check.stop()
            return
        if missing := self._missing():
            check.stop()
            self._unchecked_for(missing)
            return
        self.busy = True
        began = time.perf_counter_ns()
        meter = self._meter
        if meter is not None:
            # What the comparison takes is beside the step.
            self._forward_peak = max(self._forward_peak, meter.peak())
            meter.reset_peak()
        try:
            result = check.compare(self._plain)
        except Exception as error:  # the reference is ours: out of memory, mostly
            self._unchecked_for(f"the comparison failed ({guard.described(error)})")
        else:
            self._judge(check, result)
        finally:
            self.busy = False
            peak = meter.peak() if meter else 0
            own = self.over.own(peak, self._began_live)
            self._compared_bytes = max(self._compared_bytes, own)
            self.told.compared(peak, own, time.perf_counter_ns() - began)
            if meter is not None:
                meter.reset_peak()

    def _affords_check(self) -> bool:
        """Returns whether a comparison is allowed to take its memory; says once if it is not."""
        need, budget = self._needs_bytes(), self.joint.budget_bytes
        if not self._within or need <= budget:
            return True
        if not self._said_once:
            self._said_once = True
            say(
                f"gradients of later compiled steps are not compared: that takes "
                f"{format_bytes(need)}, the budget is {format_bytes(budget)} "
                '(verify="gradients" compares them all the same)'
            )
        return False

    def _needs_bytes(self) -> int:
        """Returns the peak of a step that is compared: as measured, or that of a step without a
        plan."""
        plan = self.plan
        return self._compared_bytes or (plan.base_peak_bytes if plan is not None else 0)

    def _missing(self) -> str:
        """Returns why nothing can be compared in this step, or ""."""
        room, meter = room_on(self._device), self._meter
        if room is None or meter is None:
            return ""
        more = self._needs_bytes() - meter.live()
        if more <= room.bytes:
            return ""
        return (
            f"a comparison takes {format_bytes(more)} more than is in use, and only "
            f"{format_bytes(room.bytes)} are left ({room.what})"
        )

    def _unchecked_for(self, why: str) -> None:
        plan = self.plan
        if plan is not None:
            self.record.unchecked(plan, why)
        say(f"gradients of a compiled step are not compared: {why}")

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        if not self._under_way or not self._owns(optimizer) or not self._cycle.ends(optimizer):
            return
        self._under_way = False
        meter = self._meter
        peak = max(self._forward_peak, meter.peak()) if meter is not None else 0
        plan = None if self.why or self._measures else self.plan
        recomputed = sum(handle.stats().recomputed for handle in self.handles)
        own = peak if plan is None else self.over.own(peak, self._began_live)
        budget, predicted = self.joint.budget_bytes, self.predicted_peak_bytes
        compiled = self.joint.seen != self._graphs
        self.told.ended(own, plan, not compiled, budget, predicted, recomputed)
        event = CompiledStepEnded(
            self._steps,
            graphs=self.joint.seen,
            has_stopped=bool(self.why),
            has_meter=meter is not None,
            is_quiet=self._judged,
            is_measured_plain=self._measures,
            needs_whole=meter is not None and not self.why and self.over.needs_whole(self._calls),
            has_plan=bool(self.joint.plans),
        )
        for action in decide(self.state, event):
            if action is Action.STOP_UNSEEN:
                self._stop(f"training without a plan: {self._unseen()}")
            elif action is Action.PLAN_WHOLE:
                self._measures = False
                self._follow(self.over.plan_whole(peak, self._began_live))
            elif action is Action.MEASURE_NEXT:
                self._measures = True
            elif action is Action.JUDGE_PEAK:
                self._judge_peak(peak)

    def _unseen(self) -> str:
        """Returns why there is no joint graph."""
        if self._compiles:
            return (
                "the backend that compiles this model makes no joint graph of forward and "
                'backward, as "inductor" and "aot_eager" do'
            )
        return "torch.compile has compiled no part of this model that is trained"

    # ---- What follows ---------------------------------------------------------------

    def _judge(self, check: Check, result: CheckResult) -> None:
        if not result.checked:
            self._unchecked_for(result.why_unchecked())
            return
        if self.handles:
            self.checked(self._steps, self.handles[-1], result)
        self.checks += 1
        if not result.differing:
            return
        check.put_right()
        for handle in self.handles:
            self.condemn(self._steps, handle, result)
        self._stop(
            f"a compiled step: {result.what_differs()} from those of the model compiled without a "
            f"plan ({result.differing[0]} first); the plan is removed and training continues "
            "without one"
        )

    def _judge_peak(self, peak: int) -> None:
        """Compares the peak of a planned step with the budget, and does what follows from it."""
        first = not self.over.measured_peak_bytes
        own = self.over.own(peak, self._began_live)
        event = PlannedStepEnded(is_over=own > self.joint.budget_bytes)
        for action in decide(self.state, event):
            if action is Action.COUNT:
                self.over.measured_peak_bytes = own
            elif action is Action.PEAK_ABOVE:
                self._follow(self.over.above(own, self._outside_bytes, self._outputs_die))
        if first and self.over.measured_peak_bytes:
            status = self.over.status(own, self._outside_bytes, self._outputs_die)
            equal = f", gradients bit for bit equal in {self.checks} checks" if self.checks else ""
            say(f"{status}{equal}")

    def _follow(self, step: Next) -> None:
        """Compiles again or stops, as a peak above the budget calls for."""
        if step.stop:
            self._stop(step.stop)
        if step.unchecked:
            self._unchecked = True
        if step.compile_again:
            self._call = self._compiled(planned=True)

    def _stop(self, why: str) -> None:
        """Trains without a plan from here on, and says why."""
        self._end_plans(why)
        self._why = why
        say(why)

    def _end_plans(self, why: str) -> None:
        """Removes all plans, and reports why the job trains without one."""
        if self.handles:
            self.withdraw(why)
        else:
            self.record.without(why)

    # ---- Compiling --------------------------------------------------------------------

    def _compiled(self, planned: bool) -> Callable[..., Any]:
        """Compiles at its first call. A backend of its own: nothing is shared with another. It
        outlives the model in the caches of torch.compile, so it does not hold the job."""
        backend, known = self._site.backend, weakref.ref(self)

        def flavour(call: Callable[..., Any], gm: Any, inputs: Any, **more: Any) -> Any:
            job = known()
            if job is None or job.broken:
                return call(gm, inputs, **more)
            job._compiles = True
            before = len(job.joint.graphs)
            with job.joint.told(planned and not job.why):
                found = call(gm, inputs, **more)
            return job._counted(found, before) if len(job.joint.graphs) == before + 1 else found

        return self._site.compiled(calls.chained(backend, [flavour]))

    def _counted(self, compiled: Callable[..., Any], graph: int) -> Callable[..., Any]:
        """Returns the compiled code; each call notes which graph of the step it is."""
        known = weakref.ref(self)

        def called(call: Callable[..., Any], *args: Any) -> Any:
            job = known()
            if job is not None:
                job._calls.append(graph)
            return call(*args)

        return wraps(compiled)(calls.chained(compiled, [called]))


def _exact_meter(device: torch.device) -> Meter | None:
    try:
        meter = open_meter(device)
        if not meter.exact:  # one that looks at every op would be compiled, too
            say(f"the peak of compiled steps is not measured: {meter.why}")
            return None
        start_counting(meter, device)
    except RepriseError as error:
        say(f"the peak of compiled steps is not measured: {error}")
        return None
    return meter
