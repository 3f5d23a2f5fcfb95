# SPDX-License-Identifier: Apache-2.0
"""One armed model: what runs around its forward and its optimizers, and how it ends.

    step.py       the step under way          planning.py   graphs and plans
    startup.py      while nothing is planned    check_schedule.py      checks of gradients
    stage.py      the stages, drawn
    progress.py  where the step is, and what filled the memory when it ran out

A step begins with the first forward of the model after the last one ended, and ends when its
optimizers have stepped. Forwards that do not train (evaluation, no_grad) are not steps. Whatever
goes wrong here, the job trains on as if nobody watched; what was decided is said once, on standard
error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from reprise.agent import Agent
from reprise.errors import RepriseError
from reprise.plan import Plan
from reprise.saying import because, say
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.check.result import VALUES
from reprise.torch.compiled import fast
from reprise.torch.internals import calls, guard, optimizers
from reprise.torch.internals.open_hooks import sweep
from reprise.torch.internals.watch import before_step, close_watches, resume
from reprise.torch.ladder.ladder import Ladder
from reprise.torch.ladder.ranks import leave, rank_here
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import captures_graph, model_device
from reprise.torch.policy.events import State
from reprise.torch.policy.stage import Stage
from reprise.torch.recovery import oom
from reprise.torch.recovery.planned_retry import PlannedRetry
from reprise.torch.recovery.startup import Startup
from reprise.torch.session.attempts import Attempts
from reprise.torch.session.check_schedule import CheckSchedule
from reprise.torch.session.first_calls import FirstCalls
from reprise.torch.session.leaving import Leaving
from reprise.torch.session.offers import Offers
from reprise.torch.session.op_times import OpTimes
from reprise.torch.session.peaks import Peaks
from reprise.torch.session.planning import Planning
from reprise.torch.session.progress import Progress
from reprise.torch.session.retry import Retry
from reprise.torch.session.stages import arm
from reprise.torch.session.step import Step
from reprise.torch.session.unplanned import Unplanned
from reprise.torch.session.updates import Updates
from reprise.torch.session.waiting import Waiting
from reprise.torch.session.watched import Watched
from reprise.torch.tape.costs import Costs
from reprise.torch.tape.executor import TapeExecutor, TapePlan
from reprise.torch.training.loop import TrainingLoop, forward_runs, open_loops
from reprise.verdict import measured_part

__all__ = ["Session"]

# AgentCaps.cupti, from which on kernels are traced.
KERNELS = 2
_oom_watches: list[Any] = []  # one, while a session is open
_OPTIMIZER = Optimizer.profile_hook_step.__code__.co_filename


class Session(TrainingLoop):
    """Everything Reprise keeps about one model."""

    def __init__(
        self,
        model: nn.Module,
        *,
        agent: Agent,
        meter: Meter,
        budget: str | None,
        verify_every: int,
        verify: str = VALUES,
        warmup: int,
        wait_s: float,
        name: str,
        costs: Costs | None = None,
        first: str = "auto",
    ) -> None:
        super().__init__(model, agent, budget)
        self.meter = meter
        self.name = name
        self.warmup = max(1, warmup)
        self.device = model_device(model)
        self.executor = TapeExecutor(
            self.device, lambda: agent.capabilities().cupti >= KERNELS, costs
        )
        self.stage = Stage.WARMUP
        self.why = ""
        self.planning = Planning(self, wait_s)
        self.checks = CheckSchedule(self, verify_every, verify)
        self.progress = Progress(self)
        self.step = Step(self)
        self.startup = Startup(self, first)
        self.op_times = OpTimes(self)
        self.planned_retry = PlannedRetry(self)
        self.attempts = Attempts(self)
        self.peaks = Peaks(self)
        self.unplanned = Unplanned(self)
        self.retry = Retry(self)
        self.leaving = Leaving(self)
        self.first_calls = FirstCalls(self)
        self.waiting = Waiting(self)
        self._by_hand = Updates(self)
        self.watched = Watched(self)
        self.offers = Offers(self)
        # Puts another module in this one's place, or what torch.compile made of this one (None).
        # False: there is none.
        self.hand_over: Callable[[nn.Module | None], bool] | None = None
        self._eval_forward = self._eval_trains = False
        self._said: set[str] = set()
        if not _oom_watches:
            _oom_watches.append(oom.watch(self.device, guard.quiet(_ran_out)))
        self._observe()
        self.forward = arm(model, self._around, self._gone)  # from here on it is called

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        model = self._model()
        if model is None:
            raise RepriseError("the model no longer exists")
        return model

    @property
    def alone(self) -> bool:
        """Whether no other model of this process is armed."""
        return len(_sessions()) == 1

    @property
    def in_forward(self) -> bool:
        """Whether a forward of the model is running: the program's, or one of Reprise's own."""
        return self.step.in_forward or self.busy

    @property
    def state(self) -> State:
        """Where the model is, as the policy sees it."""
        ranks = self.planning.coordinator is not None
        return State(self.stage, self.budget is not None, ranks, self.startup.plain)

    @property
    def ladder(self) -> Ladder:
        """The plans of the model by input size."""
        return self.planning.ladder

    @property
    def handles(self) -> list[TapePlan]:
        """The plans that are installed: of each rung that has one."""
        planned = [rung.planned for rung in self.ladder.rungs]
        return [handle for handle in planned if handle is not None and handle.tape is not None]

    @property
    def plan(self) -> Plan | None:
        """The plan of the last planned step; the refusal if that is what came."""
        rung = self.planning.rung
        return self.planning.refused if rung is None else rung.plan

    @property
    def standing(self) -> tuple[str, str]:
        """Where the model is, in words, and why."""
        if self.stage is not Stage.PLANNED:
            return self.stage.value, because(self.why)
        if not self.handles:
            return "training without a plan until one arrives", because(self.why)
        if self.agent.status == "inert":
            return self.stage.value, f"nothing is recorded: {self.agent.why}"
        return self.stage.value, because(self.why)

    def figures(self) -> dict[str, Any]:
        """Returns the fields of a report, with the times of the last step."""
        self.step.times.read(wait=True)
        found = super().figures()
        return {
            **found,
            "unplanned_over_budget_steps": self.unplanned.over_budget,
            "rungs": len(self.ladder.rungs),
            "in_python": fast.why_python() if found["planned_steps"] else "",
        }

    @property
    def graph(self) -> CapturedGraph | None:
        """The step graph behind `plan`."""
        rung, rungs = self.planning.rung, self.ladder.rungs
        return rung.graph if rung else rungs[-1].graph if rungs else None

    def _gone(self) -> None:
        # May run at any moment, also while torch walks through its optimizer hooks: they stay.
        guard.quietly(self.meter.stop)
        self.close()

    def give_way(self) -> None:
        """Ends the session, because another module is planned in the place of the model. Hooks
        of optimizers stay: torch may be walking through them."""
        self.forward.remove()
        self.stage = Stage.PLAIN
        self._gone()

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Idempotent."""
        for do in (
            self.forward.remove,
            self.step.abandon,
            self.planned_retry.close,
            self.planning.stopped,
            self._gone,
        ):
            guard.quietly(do)
        self.stage = Stage.PLAIN
        guard.quietly(resume)  # a graph may still be waiting for its backward
        optimizers.remove_unused()
        while _oom_watches and not _sessions():
            _oom_watches.pop().remove()

    def close(self) -> None:
        """Ends the reports of the model, because the session or the program ends."""
        self._leave()
        # That was the end of the program.
        short = self.step.under_way and oom.is_oom(getattr(sys, "last_value", None))
        if short and not self.startup.plain:
            guard.quietly(self.startup.notes.ran_out)
        guard.quietly(self.startup.ended, short)
        for do in (self.planned_retry.close, self.step.release_capture):
            guard.quietly(do)
        guard.quietly(self.step.times.read, True)
        if self.budget and self.step.number and not (self.step.ended or self.broken):
            self.say(
                "no plan was made: no optimizer of torch.optim has stepped for this model "
                "after its first forward, and a step ends when its optimizer has stepped"
            )
        guard.no_longer(self._broke)
        self._end_reports()

    def say(self, text: str) -> None:
        """Says a line to the person who trains, once."""
        if text not in self._said:
            self._said.add(text)
            rank = rank_here()
            say(f"rank {rank}: {text}" if rank else text)

    def say_status(self) -> None:
        """Says what was predicted and measured, in the verdict's own words, without the plan's
        sentence, which was said when the plan came."""
        if said := measured_part(self.record.verdict().sentence):
            self.say(said)

    # ---- The forward ----------------------------------------------------------

    def _around(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a call of the model. An internal error does not reach the caller."""
        if self.broken:
            return call(*args, **kwargs)
        level = calls.Level()
        try:
            return calls.around(self._forward, call, args, kwargs)
        finally:
            if self.broken:
                level.restore()
                self._clear_up()

    def _forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        sweep()
        if not self._trains():
            return call(*args, **kwargs)
        close_watches()
        if captures_graph(self.device):
            self._passed_over()
            return call(*args, **kwargs)
        self.attempts.settle()
        if self._by_hand.seen():
            self.step.over()
        self.waiting.forward()
        if not self.step.under_way:
            if self.watched.request_id is not None:
                self.offers.asked(self.watched.request_id)
                self.watched.request_id = None
            self.offers.look()
            self.step.begin(args, kwargs)
        return self.attempts.forward(call, args, kwargs)

    def _passed_over(self) -> None:
        """Says that a training forward that is captured into a CUDA graph is not planned."""
        if torch.is_grad_enabled() and self.model.training:
            why = "a CUDA graph is captured of the model, and what a graph replays is not planned"
            self.say(f"not planned: {why}")
            if self.stage in (Stage.WARMUP, Stage.CAPTURE):
                self.why = why

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """Keeps what a check needs inside the context out of the peaks of all steps under way."""
        sessions = [session for session in _sessions() if session.step.under_way]
        for session in sessions:
            session.step.keep_peak()
        try:
            yield
        finally:
            for session in sessions:
                session.meter.reset_peak()

    # ---- Faults of our own --------------------------------------------------------

    def _broke(self, error: Exception) -> bool:
        """Notes an internal error, maybe in the middle of an op (guard.py). Only says so and
        lets the step go on with everything kept; the rest waits until nothing of it is needed.
        Returns True: it has been said."""
        if self.broken:
            return True
        # It is said once, whoever hears of it.
        first = not any(other.broken for other in _sessions())
        super()._broke(error)
        self.stage, self.why = Stage.PLAIN, self.fault
        run = self.step.run
        if run is not None:
            run.engine.armed = False
        # Before the forward goes on: another rank may wait for this one before its own.
        guard.quietly(leave)
        if first:
            self.say(self.why)
        return True

    def _clear_up(self) -> None:
        """Removes what is in the way of the program, except what the records of a step under way
        need until its backward is over."""
        step = self.step
        step.in_forward = self.busy = self._eval_trains = False
        if step.run is not None and step.under_way and not step.in_optimizer:
            return
        self._cleared_up = True
        for do in (
            step.drop,
            self.startup.stop_watching,
            self.planned_retry.close,
            self.meter.events_end,
            lambda: self.planning.stopped(self.why),
        ):
            guard.quietly(do)

    def _between(self) -> None:
        if not self._cleared_up:
            self.step.in_optimizer = True  # the backward is over
        super()._between()

    def stop_planning(self, why: str) -> None:
        """Ends planning for good, and says why."""
        self.planning.stop(why)

    def _trains(self) -> bool:
        if (
            self.step.in_forward
            or self.busy
            or (self.step.in_optimizer and _stepping())
            or not torch.is_grad_enabled()
            or os.getpid() != self._pid
            or torch.compiler.is_compiling()
            or torch.jit._trace.is_tracing()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or forward_runs()  # it is a part of another armed model
        ):
            return False
        if self.model.training:
            return True
        # In eval mode, but with gradients: a step if an optimizer comes, as has been seen before.
        self._eval_forward = True
        return self._eval_trains

    def _copies(self, optimizer: Optimizer) -> bool:
        return self.step.under_way and super()._copies(optimizer)

    def _has_own_optimizer(self) -> None:
        self.step.own_optimizer()

    # ---- The optimizers -------------------------------------------------------

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer) or captures_graph(self.device):
            return
        sweep()
        close_watches()
        if self.stage is Stage.PLANNED:
            self.step.meet(optimizer)
        if self.step.under_way:
            self.step.before_optimizer()
        elif self._eval_forward and self.step.number == 0:
            self._eval_trains = True
        before_step(optimizer)
        resume()

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        if captures_graph(self.device) or not self._owns(optimizer):
            return
        close_watches()
        if self.step.under_way:
            self.step.after_optimizer(optimizer)
        else:
            self.step.learn(optimizer)
            self.waiting.not_called()
        resume()


def _sessions() -> list[Session]:
    """Returns the sessions of this process that have not ended. They share one agent, and one
    captures at a time."""
    return [loop for loop in tuple(open_loops) if isinstance(loop, Session)]


def _stepping() -> bool:
    """Returns whether it is called from an optimizer's step (a closure). One that has raised
    said nothing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _OPTIMIZER:
        frame = frame.f_back
    return frame is not None


def _ran_out(error: BaseException | None, asked: int) -> None:
    """Reports that memory ran out in a step: in the one that began last."""
    for session in reversed(_sessions()):
        if session.step.under_way and os.getpid() == session._pid:
            session.progress.ran_out(error, asked)
            session.attempts.ran_out(asked)
            return
