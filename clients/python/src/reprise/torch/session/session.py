# SPDX-License-Identifier: Apache-2.0
"""One armed model: what runs around its forward and its optimizers, and how it ends.

    job/           what is known of it, and the step under way
    steps.py       moves that step on
    planning/      its graphs and plans
    startup.py     the steps before the first plan (recovery/)

A step begins with the first forward of the model after the last one ended, and ends when its
optimizers have stepped. Forwards that do not train (evaluation, no_grad) are not steps. Whatever
goes wrong here, the job trains on as if nobody watched; what was decided is said once, on standard
error. The session and its parts (parts.py) name the functions of the policy's actions; no part
knows the session.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from reprise.agent.agent import Agent
from reprise.base.saying import because
from reprise.plan import Plan
from reprise.torch.internals import calls, guard, optimizers
from reprise.torch.internals.open_hooks import sweep
from reprise.torch.internals.optimizers import Cycle
from reprise.torch.internals.traces import frames
from reprise.torch.internals.watch import before_step, close_watches, resume
from reprise.torch.job.job import EagerJob, Options
from reprise.torch.job.stages import Stages, arm, stages_of
from reprise.torch.ladder.ranks import leave
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import captures_graph
from reprise.torch.policy.events import Broke, Fact
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage
from reprise.torch.recovery import oom
from reprise.torch.session.attempts import Attempts
from reprise.torch.session.parts import Parts
from reprise.torch.session.steps import Steps
from reprise.torch.session.updates import Updates
from reprise.torch.tape.costs import Costs
from reprise.torch.tape.executor import TapeExecutor, TapePlan
from reprise.torch.training import armed
from reprise.torch.training.loop import TrainingLoop, forward_runs, open_loops

# AgentCaps.cupti, from which on kernels are traced.
KERNELS = 2
_oom_watches: list[Any] = []  # one, while a session is open
_OPTIMIZER = Optimizer.profile_hook_step.__code__.co_filename


class Session(TrainingLoop):
    """Everything Reprise keeps about one model."""

    job: EagerJob

    def __init__(
        self,
        model: nn.Module,
        *,
        agent: Agent,
        meter: Meter,
        options: Options,
        wait_s: float,
        costs: Costs | None = None,
    ) -> None:
        job = self.job = EagerJob(model, agent, meter, options)
        super().__init__(job)
        self.executor = TapeExecutor(
            job.device,
            lambda: agent.capabilities().cupti >= KERNELS,
            costs,
            host_bytes=options.host_bytes,
        )
        parts = self.parts = Parts(job, self.executor, wait_s)
        self._by_hand = Updates(job)
        self._steps = Steps(job, parts)
        self._attempts = Attempts(job, self._steps, parts)
        job.carry_out({Action.PLAN_TOGETHER: lambda _: self._join()})
        self._eval_forward = self._eval_trains = False
        if not _oom_watches:
            _oom_watches.append(oom.Watch(job.device, guard.quiet(_ran_out), guard.quiet(_answer)))
        self._observe()
        job.forward = arm(model, self._around, self.gone)  # from here on it is called

    @property
    def in_forward(self) -> bool:
        """Whether a forward of the model is running: the program's, or one of Reprise's own."""
        return self.job.step.in_forward or self.job.busy

    @property
    def handles(self) -> list[TapePlan]:
        """The plans that are installed: of each rung that has one."""
        return self.job.plans.handles

    @property
    def plan(self) -> Plan | None:
        """The plan of the last planned step; the refusal if that is what came."""
        return self.job.plans.plan

    @property
    def standing(self) -> tuple[str, str]:
        """Where the model is, in words, and why."""
        job = self.job
        if job.stage is not Stage.PLANNED:
            return job.stage.value, because(job.why)
        if not self.handles:
            return "training without a plan until one arrives", because(job.why)
        if job.agent.status == "inert":
            return job.stage.value, f"nothing is recorded: {job.agent.why}"
        return job.stage.value, because(job.why)

    def figures(self) -> dict[str, Any]:
        """Returns the fields of a report, with the times of the last step."""
        self.job.step.times.read(wait=True)
        self.parts.graphed.over()
        found = super().figures()
        return {
            **found,
            "budget_bytes": self.parts.waiting.budget_bytes,  # of a refusal, too
            "unplanned_over_budget_steps": self.parts.waiting.over_budget,
            "rungs": len(self.job.plans.ladder.rungs),
            "in_python": self.job.measured.in_python,
            "host_bytes": max((h.bytes_on_host for h in self.job.plans.handles), default=0),
        }

    def gone(self) -> None:
        """Ends the session, because its model has died, or another one is planned in its place."""
        # May run at any moment, also while torch walks through its optimizer hooks: they stay.
        guard.quietly(self.job.meter.stop)
        self.close()

    def unarm(self) -> None:
        """Puts the model's own forward back."""
        if self.job.forward is not None:
            self.job.forward.remove()

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Idempotent."""
        for do in (
            self.unarm,
            self._steps.abandon,
            self._steps.state_home,
            self.parts.planned_retry.close,
            self.parts.planning.stopped,
            self.gone,
        ):
            guard.quietly(do)
        self.job.happened(Fact.REMOVED)
        guard.quietly(resume)  # a graph may still be waiting for its backward
        optimizers.remove_unused()
        while _oom_watches and not _sessions():
            _oom_watches.pop().remove()

    def close(self) -> None:
        """Ends the reports of the model, because the session or the program ends."""
        self._leave()
        job = self.job
        # That was the end of the program.
        short = job.step.under_way and guard.is_oom(getattr(sys, "last_value", None))
        if short and job.budget is not None:
            guard.quietly(self.parts.planning.notes.ran_out)
        for do in (self.parts.planned_retry.close, self._steps.release_capture):
            guard.quietly(do)
        guard.quietly(job.step.times.read, True)
        called = job.step.number or self._eval_forward
        if job.budget and called and not (job.step.ended or job.broken):
            job.say(
                "no plan was made: no optimizer of torch.optim has stepped for this model "
                "after its first forward, and a step ends when its optimizer has stepped"
            )
        guard.no_longer(self._broke)
        self._end_reports()

    def _join(self) -> None:
        """Plans the models that are trained in the same steps as one, in the place of each."""
        job = self.job
        jobs = [job, *self.parts.together.alike()]
        others = [one for one in _sessions() if one is not self and one.job in jobs]
        models = [model for one in jobs for model in stages_of(one.model)]
        assert job.hand_over is not None
        job.say(
            f"{len(models)} models are trained in the same steps within {job.budget}: they "
            "are planned as one, and share this budget"
        )
        stepped = [optimizer for one in jobs for optimizer in one.step.optimizers]
        for other in others:
            other.remove()
        self.parts.planning.stopped()
        job.hand_over(Stages(models))
        joint = armed.current(models[0])
        if isinstance(joint, Session):
            for optimizer in filter(joint._owns, stepped):
                # A step of all ends when each of them has stepped.
                joint.job.step.cycle.learn(optimizer)

    # ---- The forward ----------------------------------------------------------

    def _around(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a call of the model. An internal error does not reach the caller."""
        if self.job.fault:
            return call(*args, **kwargs)
        level = calls.Level()
        try:
            return calls.around(self._forward, call, args, kwargs)
        finally:
            if self.job.fault:
                level.restore()
                self._clear_up()

    def _forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        sweep()
        if not self._trains():
            return call(*args, **kwargs)
        close_watches()
        if captures_graph(self.job.device):
            if self.job.step.under_way:
                self._steps.drop()  # it warmed up for the capture: no optimizer has stepped
            return self.parts.graphed.forward(call, args, kwargs)
        self.parts.graphed.over()
        self._attempts.settle()
        if self._by_hand.seen():
            self._steps.over()
        self.parts.waiting.forward()
        if not self.job.step.under_way:
            self.parts.page.look()
            self._steps.begin(args, kwargs)
        return self._attempts.forward(call, args, kwargs)

    # ---- Faults of our own --------------------------------------------------------

    def _broke(self, error: Exception) -> bool:
        """Notes an internal error, maybe in the middle of an op (guard.py). Only says so and
        lets the step go on with everything kept; the rest waits until nothing of it is needed.
        Returns True: it has been said."""
        if self.job.broken:
            return True
        # It is said once, whoever hears of it.
        first = not any(other.job.broken for other in _sessions())
        super()._broke(error)
        self.job.happened(Broke(self.job.fault))
        run = self.job.step.run
        if run is not None:
            run.engine.armed = False
        # Before the forward goes on: another rank may wait for this one before its own.
        guard.quietly(leave)
        if first:
            self.job.say(self.job.why)
        return True

    def _clear_up(self) -> None:
        """Removes what is in the way of the program, except what the records of a step under way
        need until its backward is over."""
        step = self.job.step
        step.in_forward = self.job.busy = self._eval_trains = False
        if step.run is not None and step.under_way and not step.in_optimizer:
            return
        self._cleared_up = True
        for do in (
            self._steps.drop,
            self.parts.planned_retry.close,
            self.job.meter.events_end,
            lambda: self.parts.planning.stopped(self.job.why),
        ):
            guard.quietly(do)

    def _between(self) -> None:
        if not self._cleared_up:
            self.job.step.in_optimizer = True  # the backward is over
        super()._between()

    def _trains(self) -> bool:
        step = self.job.step
        if (
            step.in_forward
            or self.job.busy
            or (step.in_optimizer and _stepping())
            or not torch.is_grad_enabled()
            or os.getpid() != self._pid
            or torch.jit._trace.is_tracing()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or forward_runs()  # it is a part of another armed model
        ):
            return False
        if self.job.model.training:
            return True
        # In eval mode, but with gradients: a step if an optimizer comes, as has been seen before.
        self._eval_forward = True
        return self._eval_trains

    def _copies(self, optimizer: Optimizer) -> bool:
        return self.job.step.under_way and super()._copies(optimizer)

    def _has_own_optimizer(self) -> None:
        self.job.step.cycle = Cycle()  # without those that update no parameter of the model itself

    # ---- The optimizers -------------------------------------------------------

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer) or captures_graph(self.job.device):
            return
        sweep()
        close_watches()
        self.parts.graphed.over()
        if self.job.stage is Stage.PLANNED and self.job.step.cycle.replaces(optimizer):
            # State of the old one that only cycles of objects hold (of a trainer's earlier `fit`)
            # goes before the new one makes its own.
            gc.collect()
        if self.job.step.under_way:
            self._steps.before_optimizer()
        elif self._eval_forward and self.job.step.number == 0:
            self._eval_trains = True
        before_step(optimizer)
        resume()

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        if captures_graph(self.job.device) or not self._owns(optimizer):
            return
        close_watches()
        if self.job.step.under_way:
            self._steps.after_optimizer(optimizer)
        else:
            # It stepped outside a step: from now on it belongs to one.
            self.job.step.cycle.learn(optimizer)
            self.parts.waiting.not_called()
        resume()


def _sessions() -> list[Session]:
    """Returns the sessions of this process that have not ended. They share one agent, and one
    captures at a time."""
    return [loop for loop in tuple(open_loops) if isinstance(loop, Session)]


def _stepping() -> bool:
    """Returns whether it is called from an optimizer's step (a closure). One that has raised
    said nothing."""
    return any(frame.f_code.co_filename == _OPTIMIZER for frame in frames())


def _answer() -> Callable[[], None] | None:
    """Returns what says what would have fitted, of the step that began last, after memory that ran
    out has ended the program. It holds the model, which a function may have held alone."""
    last = max(_sessions(), key=lambda one: one.parts.answer.asked_ns, default=None)
    if last is None or os.getpid() != last._pid:
        return None
    return partial(last.parts.answer.give, last.job.model)


def _ran_out(error: BaseException | None, asked: int) -> None:
    """Reports that memory ran out in a step: in the one that began last."""
    for session in reversed(_sessions()):
        if session.job.step.under_way and os.getpid() == session._pid:
            session.parts.progress.ran_out(error, asked)
            session.parts.answer.ran_out()
            session._attempts.ran_out(asked)
            return
