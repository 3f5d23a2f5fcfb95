# SPDX-License-Identifier: Apache-2.0
"""One armed model: from the first plain steps to planned and verified ones.

    WARMUP --n plain steps--> CAPTURE --one step--> WAITING --plan--> PLANNED
                                 ^                     | refused          | gradients differ,
                                 |                     v                  v plan cannot run
                                 +- another size,    PLAIN <-------------+
                                    another program

A step begins with the first forward of the model after the last one ended, and ends when its
optimizers have stepped (cycle.py). Forwards that do not train (evaluation, no_grad) are not steps.
Which plan a step runs under is the ladder's choice (ladder.py), made when the step begins. Whatever
goes wrong here, the job trains on as if nobody watched; what was decided is said once, on standard
error.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from reprise import abi
from reprise.agent import Agent, PlanReply
from reprise.errors import RepriseError
from reprise.plan import Plan
from reprise.torch import oom, quarantine
from reprise.torch.capture import FORWARD, Capture
from reprise.torch.costs import Costs
from reprise.torch.cycle import Cycle
from reprise.torch.forward import ArmedForward
from reprise.torch.ladder import Key, Ladder, Rung, key_of
from reprise.torch.measure import Measured
from reprise.torch.meter import Meter
from reprise.torch.placement import peak_of, place
from reprise.torch.program import Program, compile_plan
from reprise.torch.ranks import Ranks
from reprise.torch.state import alive_tensors, blocked, known_names, model_device, now_ns
from reprise.torch.step_graph import CapturedGraph, build
from reprise.torch.tape import Run, Tape
from reprise.torch.verify import Audit, Check, CheckResult
from reprise.torch.watch import close_watches
from reprise.torch.windows import KernelWindow, OpRecorder, OpWindow

__all__ = ["Session", "Stage", "capturing"]

# So many planned steps after the first check the result is said in a line.
SAID_AFTER = 3
# So many plans in a row may peak above the budget on the tape before one is taken as it is.
TIGHTENED_AT_MOST = 3
# Ranks ask together whether there is a newer plan, every so many steps.
ASK_EVERY = 32

# Sessions of this process: they share one agent, and one captures at a time.
_open: dict[Session, None] = {}
_hooks: list[Any] = []
_capturing: list[Session] = []


class Stage(Enum):
    WARMUP = "warming up"
    CAPTURE = "capturing a step"
    WAITING = "waiting for a plan"
    PLANNED = "training under a plan"
    PLAIN = "training without a plan"


class Session:
    """Everything Reprise keeps about one model."""

    def __init__(
        self,
        model: nn.Module,
        *,
        agent: Agent,
        meter: Meter,
        budget: str | None,
        verify_every: int,
        warmup: int,
        wait_s: float,
        name: str,
        costs: Costs,
    ) -> None:
        # Weak: an armed model dies with its last user, not with the process.
        self._model = weakref.ref(model)
        weakref.finalize(model, self._gone).atexit = False
        self.agent = agent
        self.meter = meter
        self.budget = budget
        self.name = name
        self.stage = Stage.WARMUP
        self.why = ""
        self.attached = False  # by `reprise run`, not by the program
        self.ladder = Ladder()
        self.rung: Rung | None = None  # of the last planned step
        self.ranks: Ranks | None = None  # known when the first step has been captured
        self.refused: Plan | None = None  # the server's "no plan fits"
        self.measured = Measured(budget)
        self._costs = costs
        self._verify_every = verify_every
        self._warmup = max(1, warmup)
        self._wait_s = wait_s
        self._pid = os.getpid()
        self._device = model_device(model)
        self._parameters = {id(p) for p in model.parameters()}
        self._foreign: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._cycle = Cycle()
        self._eval_forward = self._eval_trains = False
        self._step = 0
        self._key = Key((), ())
        self._in_step = False
        self._in_forward = False
        self._in_optimizer = False
        self._busy = False
        self._begin_ns = 0
        self._capture: Capture | None = None
        self._kernel_window = KernelWindow(agent, self._device)  # around a captured step
        self._tried = 0  # captures given up
        self._op_scale = 1.0  # time of a plain step / ops of a captured one
        self._run: Run | None = None
        self._check: Check | None = None
        self._since_check = 0
        self._checked = False
        self._traced: set[int] = set()
        self._window = False
        self._op_window: OpWindow | None = None
        self._oom = False
        self._risky = False  # memory has run out before
        self._peak = 0
        self._broken = False
        self._said: set[str] = set()
        self._forward = ArmedForward(model, self._around)
        _open[self] = None
        atexit.register(self.close)
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_before_optimizers))
            _hooks.append(register_optimizer_step_post_hook(_after_optimizers))

    @property
    def model(self) -> nn.Module:
        """The armed model."""
        model = self._model()
        if model is None:
            raise RepriseError("the model of this session is gone")
        return model

    @property
    def plan(self) -> Plan | None:
        """The plan of the last planned step; the refusal, where that is what came."""
        return self.refused if self.rung is None else self.rung.plan

    @property
    def armed_ns(self) -> int:
        """What the last planned step's plan costs per step beyond the ops it runs again."""
        rung = self.rung
        if rung is None or rung.tape is None:
            return 0
        return int(self._costs.armed_ns(rung.tape.program) * rung.graph.step.stretched)

    @property
    def graph(self) -> CapturedGraph | None:
        """The step graph behind it."""
        rungs = self.ladder.rungs
        return self.rung.graph if self.rung else rungs[-1].graph if rungs else None

    def _gone(self) -> None:
        # May run at any moment, also while torch walks through its optimizer hooks: they stay.
        self.meter.stop()
        self.close()

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Idempotent."""
        self._abandon()
        self._stopped("removed")
        self._forward.remove()
        self._gone()
        self.stage = Stage.PLAIN
        while _hooks and not _open:
            _hooks.pop().remove()

    def close(self) -> None:
        """Ends this model's part of the agent's session; the last one ends the session, so that
        what was reported arrives and the run is seen to end and not to die."""
        _open.pop(self, None)
        if self in _capturing:
            _capturing.remove(self)
        atexit.unregister(self.close)
        if not _open and os.getpid() == self._pid:
            self.agent.stop()

    def say(self, text: str) -> None:
        """One line to the person who trains, once."""
        if text not in self._said:
            self._said.add(text)
            print(f"reprise: {text}", file=sys.stderr, flush=True)

    # ---- The forward ----------------------------------------------------------

    def _around(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        close_watches()
        if not self._trains():
            return call(*args, **kwargs)
        if not self._in_step and not self._safely(self._begin_step, args, kwargs):
            return call(*args, **kwargs)
        before = oom.Before(self.model) if self._risky else None
        try:
            return self._watched(call, args, kwargs)
        except BaseException as error:
            self._abandon()
            if not oom.is_oom(error):
                raise
            self._out_of_memory(error)
            if before is None or not before.again:
                raise
        # Outside the handler: its traceback would keep the failed forward's tensors.
        before.restore()
        if not self._in_step:
            self._begin_step(args, kwargs)
        return self._watched(call, args, kwargs)

    def _safely(self, do: Callable[..., None], *args: Any) -> bool:
        """Our own mistakes are not the job's: said once, and Reprise is out of the way."""
        try:
            do(*args)
        except Exception as error:
            self._busy = self._in_step = self._in_optimizer = False
            self._abandon()
            self._run = None
            where = f"{type(error).__name__}: {error}"
            self.stop_planning(f"trains without Reprise after a fault of its own ({where})")
            self._eval_trains = False
            self._broken = True
            return False
        return True

    def _watched(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._in_forward = True
        try:
            if self._check is not None:
                self._check.enter(args, kwargs)
            if self._capture is not None:
                with self._capture.region() as pin:
                    out = call(*args, **kwargs)
                    pin(out)
            elif self._run is not None:
                out = self._planned(self._run, call, args, kwargs)
            else:
                out = call(*args, **kwargs)
        finally:
            self._in_forward = False
        if self._check is not None:
            self._check.leave(out)
        return out

    def _planned(
        self, run: Run, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        why = blocked()
        if why:
            # A capture of another model of ours is nothing this program has done.
            run.stand_aside("" if _capturing else why)
            if self._check is not None:
                self._check.stop()
                self._check = None
            return call(*args, **kwargs)
        assert self.rung is not None
        assert self.rung.tape is not None
        if run.spent:
            # One more micro-batch than captured, or a step that was given up after its backward.
            run = self._run = self.rung.tape.begin(run.counts)
        with self.rung.tape.region():
            return call(*args, **kwargs)

    def _trains(self) -> bool:
        if (
            self._in_forward
            or self._broken
            or self._busy
            or self._in_optimizer
            or not torch.is_grad_enabled()
            or os.getpid() != self._pid
            or torch.compiler.is_compiling()
            or any(s._in_forward or s._busy for s in _open)  # a part of another armed model
        ):
            return False
        if self.model.training:
            return True
        # In eval mode, but with gradients: a step if an optimizer comes, as has been seen before.
        self._eval_forward = True
        return self._eval_trains

    # ---- A step ---------------------------------------------------------------

    def _begin_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._step += 1
        self._cycle.restart()
        self._key = key_of(args, kwargs)
        self._ask_for_plans()
        self._in_step, self._window, self._run = True, False, None
        if not (self._wants_capture() and self._begin_capture()) and self.stage is Stage.PLANNED:
            self._begin_planned()
        self.agent.step(self._step)
        if self.agent.window_kinds() and not self._window:
            self._trace(True)  # the collector asked
        self._peak = 0
        if self._capture is None:
            self.meter.reset_peak()
        self._begin_ns = now_ns(self._device)

    def _wants_capture(self) -> bool:
        if self.budget is None or _capturing or self.agent.status == "inert":
            return False
        if self.stage is Stage.CAPTURE:
            return True
        # One rank alone must not decide: the others would go on without it.
        alone = self.ranks is None
        return alone and self.stage is Stage.PLANNED and self.ladder.wants(self._key)

    def _begin_capture(self) -> bool:
        why = blocked()
        if why:
            self._tried += 1
            if self._tried > 3 and self.stage is Stage.CAPTURE:
                self.stop_planning(f"trains without a plan: {why}")
            return False
        _capturing.append(self)
        self._trace(True, ops=False)
        self._kernel_window.open()
        recorder = OpRecorder(self.agent)
        self._capture = Capture(self.model, self.meter, recorder, self._kernel_window.traced)
        prior = alive_tensors(self._device)
        self._capture.begin(prior, known_names(self.model, self._cycle.optimizers))
        return True

    def _begin_planned(self) -> None:
        rung = self.ladder.pick(self._key)
        if rung is None or rung.tape is None or rung.plan is None:
            return
        self.rung = rung
        self.measured.show(rung.key, rung.number)
        self._run = rung.tape.begin()
        if self._verify_every and (
            rung.number not in self._traced or self._since_check >= self._verify_every
        ):
            self._since_check = 0
            self._traced.add(rung.number)
            if rung.leaks:
                self._run.audit = Audit()
            else:
                self._check = Check(self.model, rung.left_out)
        elif -rung.number not in self._traced:
            self._traced.add(-rung.number)
            self._trace(True)  # not the first: its check would be in the picture
        self._since_check += 1

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer):
            return
        close_watches()
        if not self._in_step:
            if self._eval_forward and self._step == 0:
                self._eval_trains = True
            return
        self._in_optimizer = True
        if self._capture is not None:
            self._capture.enter_optimizer()
        if self._run is not None and self._run.audit is not None:
            audit, self._run.audit = self._run.audit, None
            self._checked = True
            self._judge(audit.result())
        if self._check is not None:
            began = now_ns(self._device)
            self._peak = max(self._peak, self.meter.peak())
            check, self._check = self._check, None
            self._compare(check)
            del check
            self.meter.reset_peak()
            self._begin_ns += now_ns(self._device) - began

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer):
            return
        if not self._in_step:
            self._cycle.learn(optimizer)
            return
        self._in_optimizer = False
        if not self._cycle.ends(optimizer):
            return
        step_ns = now_ns(self._device) - self._begin_ns
        self._in_step = False
        capture, self._capture = self._capture, None
        if capture is not None:
            _capturing.remove(self)
            self._finish_capture(capture)
            self._trace(False)
            return
        peak = max(self._peak, self.meter.peak())
        self._trace_ops(False)
        self._end_step(step_ns, peak)
        self._trace(False)

    def _owns(self, optimizer: Optimizer) -> bool:
        if optimizer in self._foreign:
            return False
        for again in (False, True):
            if again:  # parameters may have been replaced: a new head, a lazy module
                model = self._model()
                self._parameters = {id(p) for p in model.parameters()} if model else set()
            for group in optimizer.param_groups:
                if any(id(p) in self._parameters for p in group["params"]):
                    return True
        self._foreign.add(optimizer)
        return False

    def _end_step(self, step_ns: int, peak: int) -> None:
        run, self._run = self._run, None
        checked, self._checked = self._checked, False
        flags, plan_id, replayed, mismatches = 0, 0, 0, 0
        plan = self.rung.plan if self.rung is not None else None
        if run is not None and self.rung is not None and plan is not None:
            run.finish()
            counts = run.counts
            plan_id, replayed = plan.plan_number, counts.replayed + counts.on_demand
            mismatches = counts.mismatches
            flags |= abi.STEP_PLANNED | (abi.STEP_KEPT_ALL if not run.armed else 0)
            quiet = not (self._window or checked or mismatches)
            self.measured.planned(self.rung.number, step_ns, peak, plan.budget_bytes, quiet)
            if run.armed or mismatches:
                self.measured.mismatched_steps += bool(mismatches)
                self.ladder.after(self.rung, matched=not mismatches)
        elif not self._oom:
            self.measured.plain(self._key, step_ns, peak)
        flags |= (abi.STEP_WINDOW if self._window else 0) | (abi.STEP_OOM if self._oom else 0)
        self._oom = False
        self.agent.step_done(
            self._step,
            step_ns=step_ns,
            peak_bytes=peak,
            plan_id=plan_id,
            flags=flags,
            recomputed=replayed,
            mismatches=mismatches,
        )
        if self.stage is Stage.WARMUP and self.measured.plain_steps >= self._warmup:
            self.stage = Stage.PLAIN if self.budget is None else Stage.CAPTURE
        elif self.stage is Stage.PLANNED and self.ladder.hopeless:
            what = run.counts.first_mismatch if run is not None else ""
            self._drop_plans(f"the step keeps changing ({what})")
        elif run is not None and self.measured.planned_steps == SAID_AFTER + 1:
            self._say_status()

    def _say_status(self) -> None:
        from reprise.api import status_line

        self.say(status_line(self))

    def _abandon(self) -> None:
        """Forgets the step that is under way: it may be tried again, or given up. A capture of half
        a step is worth nothing."""
        close_watches()
        if self._capture is not None:
            self._capture.leave()
            self._capture = None
            self._kernel_window.drop()
            _capturing.remove(self)
        if self._check is not None:
            self._check.stop()
            self._check = None
        if self._run is not None and self._run.armed:
            self._run.mismatch("the forward failed")
        self._trace_ops(False)
        self._trace(False)
        self._in_step = self._in_step and self._run is not None

    def _trace(self, on: bool, ops: bool = True) -> None:
        """Allocator events and op records to the agent, for the steps that pages draw."""
        if on:
            self._window = True
            self.meter.events_begin(self.agent)
            self._trace_ops(ops)
        elif self._window:
            self.meter.events_end()

    def _trace_ops(self, on: bool) -> None:
        """A capture sends op records itself."""
        if on and self._op_window is None and not blocked():
            self._op_window = OpWindow(self.agent)
            self._op_window.open()
            if self._run is not None:
                self._run.replayer.recorder = self._op_window.recorder
        elif not on and self._op_window is not None:
            self._op_window.close()
            self._op_window = None

    def _out_of_memory(self, error: BaseException) -> None:
        self.agent.oom(self._device.index or 0 if self._device.type == "cuda" else -1)
        self._oom = self._risky = True
        self.say(f"step {self._step}: out of memory in the forward; plans get tighter from here")
        rung = self.rung
        if rung is not None and rung.plan is not None and self.ranks is None:
            tighter = int(rung.plan.budget_bytes * oom.TIGHTER)
            self._submit(rung, rung.graph.message(), str(tighter))

    # ---- Graphs and plans ---------------------------------------------------------

    def _finish_capture(self, capture: Capture) -> None:
        step = capture.finish()
        self._kernel_window.close()
        self.agent.step_done(
            self._step, step_ns=step.step_ns, peak_bytes=step.peak_bytes, flags=abi.STEP_WINDOW
        )
        ops_ns = sum(op.time_ns for op in step.ops)
        peak, plain_ns = self.measured.base(self._key)
        if plain_ns and ops_ns:
            self._op_scale = plain_ns / ops_ns
        elif not plain_ns:
            # No plain step with this input was measured: from the ops of the captured one.
            peak, plain_ns = step.peak_bytes, int(ops_ns * self._op_scale)
            self.measured.set_base(self._key, peak, plain_ns)
        graph = build(step, name=self.name, measured_peak_bytes=peak, measured_step_ns=plain_ns)
        outside = {
            id(s) for op in step.ops if op.phase == FORWARD and not op.in_region for s in op.reads
        }
        read = [s for s in step.storages if id(s) in outside]
        left_out = frozenset(s.name for s in read if s.name)
        leaks = any(s.in_region and not s.pinned for s in read)
        rung = self.ladder.add(self._key, graph, left_out, leaks)
        if rung is None:
            return
        if self.stage is Stage.CAPTURE:
            self.stage = Stage.WAITING
        assert self.budget is not None
        if self.ranks is None:
            self.ranks = Ranks.here()
        if self.ranks is not None:
            why = self.ranks.agree(graph.structure)
            if why:
                self.stop_planning(why)
                return
            if not self.ranks.first:
                return
        self._submit(rung, graph.message(), self.budget)
        ahead = self.ladder.ahead(rung)
        if ahead is not None and self.ranks is None:
            self._submit(*ahead, self.budget)

    def _submit(self, rung: Rung, message: dict[str, Any], budget: str) -> None:
        text = graph_bytes(message, rung.number, budget)
        # Of the same busy machine as the times of the graph's ops.
        replay_ns = int(self._costs.replay_ns * rung.graph.step.stretched)
        capabilities = f"tape:seeded_ok=1:ns_per_op={replay_ns}"
        try:
            graph_id = self.agent.submit_graph(text, budget, capabilities, message["static_bytes"])
            why = self.agent.why if graph_id is None else ""
        except RepriseError as error:
            graph_id, why = None, str(error)
        if graph_id is not None:
            rung.graph_id, rung.refused = graph_id, ""
        elif rung.tape is None:
            rung.refused = f"trains without a plan: {why}"
            self._nothing_left()

    def _ask_for_plans(self) -> None:
        """Between steps: waits for the first plan, takes any other when it is there."""
        if self.ranks is not None:
            self._ask_for_all_ranks(self.ranks)
            return
        for rung in [r for r in self.ladder.rungs if r.open]:
            have = 0 if rung.plan is None else rung.plan.plan_number
            waiting = self.stage is Stage.WAITING and rung.plan is None
            assert rung.graph_id is not None
            try:
                reply = (
                    self.agent.wait_plan(rung.graph_id, have, self._wait_s)
                    if waiting
                    else self.agent.poll_plan(rung.graph_id, have)
                )
            except RepriseError as error:
                rung.refused = f"trains without a plan: {error}"
                continue
            if reply.kind == "plan" and reply.plan is not None:
                self._install(rung, reply.plan)
            elif reply.kind == "refused" and rung.plan is None:
                self.measured.smallest_budget = reply.smallest_budget
                rung.refused = reply.why or "the server refused to plan this step"
                if self.stage is not Stage.WAITING:
                    self.say(rung.refused)
            elif reply.kind == "inert" and rung.plan is None:
                rung.refused = f"trains without a plan: {reply.why or self.agent.why}"
            elif reply.kind == "pending" and waiting:
                self.say(f"no plan after {self._wait_s:.0f} s; trains without one until it comes")
                self.stage = Stage.PLANNED
        self._nothing_left()

    def _ask_for_all_ranks(self, ranks: Ranks) -> None:
        """Rank 0 asks, all of them get what it got: the first plan, then any other, every
        ASK_EVERY steps. Applied by all or by none."""
        if not self.ladder.rungs:
            return
        (rung,) = self.ladder.rungs[:1]
        waiting = self.stage is Stage.WAITING
        if not waiting and (self.stage is not Stage.PLANNED or self._step % ASK_EVERY):
            return
        reply = None
        if ranks.first:
            have = 0 if rung.plan is None else rung.plan.plan_number
            if rung.graph_id is None:
                reply = PlanReply("inert", why=self.agent.why)
            elif waiting:
                reply = self.agent.wait_plan(rung.graph_id, have, self._wait_s)
            else:
                reply = self.agent.poll_plan(rung.graph_id, have)
        reply = ranks.broadcast(reply)
        if reply.kind == "plan" and reply.plan is not None:
            self._install(rung, reply.plan)
            applied = "" if rung.plan is None else rung.plan.plan_id
            fine = not rung.refused and applied == reply.plan.plan_id
            if not all(ranks.gather(fine)):
                self._drop_plans(rung.refused or "another rank cannot run the plan")
        elif waiting:
            self.measured.smallest_budget = reply.smallest_budget
            self.stop_planning(reply.why or "trains without a plan: none came in time")

    def _nothing_left(self) -> None:
        """No rung has a plan, and none will come."""
        rungs = self.ladder.rungs
        if self.stage in (Stage.WAITING, Stage.PLANNED) and rungs:
            if any(r.tape is not None or r.open for r in rungs):
                return
            self.stop_planning(rungs[-1].refused)

    def _install(self, rung: Rung, plan: Plan) -> None:
        why = ""
        if not plan.feasible:
            self.refused, rung.refused = plan, plan.sentence or "no plan fits the budget"
            return
        if quarantine.holds(plan):
            why = f"plan {plan.plan_id} was found to change gradients before"
        tape = None
        try:
            if not why:
                plan, program = _placed(rung, plan)
                tape = Tape(program)
        except RepriseError as error:
            why = str(error)
        if tape is not None and plan.peak_bytes > plan.budget_bytes and self._tighten(rung, plan):
            return
        if why:
            self.agent.plan_state(plan.plan_number, abi.PLAN_REFUSED, why)
            if rung.tape is None:
                rung.refused = f"trains without a plan: {why}"
            return
        rung.tape, rung.plan = tape, plan
        self.stage = Stage.PLANNED
        self.measured.new_plan(rung.number)
        self.agent.plan_state(plan.plan_number, abi.PLAN_APPLIED)
        if plan.sentence:
            self.say(plan.sentence)

    def _tighten(self, rung: Rung, plan: Plan) -> bool:
        """Asks for a plan that has room for what this one is above the budget on the tape."""
        if self.ranks is not None or rung.tightened >= TIGHTENED_AT_MOST:
            return False
        rung.tightened += 1
        rung.extra_bytes += plan.peak_bytes - plan.budget_bytes
        message = rung.graph.message()
        for figure in ("static_bytes", "measured_peak_bytes"):
            message[figure] += rung.extra_bytes
        self._submit(rung, message, str(plan.budget_bytes))
        return rung.open

    def _stopped(self, why: str) -> None:
        for rung in self.ladder.rungs:
            if rung.plan is not None and rung.tape is not None:
                self.agent.plan_state(rung.plan.plan_number, abi.PLAN_STOPPED, why)
            rung.tape, rung.graph_id = None, None

    def _drop_plans(self, why: str) -> None:
        self._stopped(why)
        self.rung = None
        self.stop_planning(why)

    def stop_planning(self, why: str) -> None:
        """No plan from here on."""
        for rung in self.ladder.rungs:
            rung.tape, rung.graph_id = None, None
        self.stage, self.why = Stage.PLAIN, why
        self.say(why)

    # ---- Verification -------------------------------------------------------------

    def _compare(self, check: Check) -> None:
        self._busy = self._checked = True
        try:
            result = check.compare(self._forward.plain)
        except Exception as error:
            # The reference is ours: its failure must not be the job's. Out of memory, mostly.
            self.say(f"step {self._step} could not be verified: {error}")
            return
        finally:
            self._busy = False
        if not result.checked and self.rung is not None:
            # Clipped, scaled: no gradient is the model's own any more. Values are compared then.
            self.rung.leaks = True
            self._since_check = self._verify_every
            return
        self._judge(result)

    def _judge(self, result: CheckResult) -> None:
        rung = self.rung
        assert rung is not None
        assert rung.plan is not None
        self.measured.checked(result)
        equal = not result.differing
        plan = rung.plan
        self.agent.verify(
            self._step,
            plan_id=plan.plan_number,
            checked=result.checked,
            differing=len(result.differing),
            flags=abi.VERIFY_BITWISE if equal else abi.VERIFY_FAILED,
            first_name=0 if equal else self.agent.intern(result.differing[0]),
        )
        if not equal:
            report = {"step": self._step, "differing": result.differing, "torch": torch.__version__}
            quarantine.put(plan, rung.graph.to_json(), report)
            self._drop_plans(
                f"step {self._step}: {len(result.differing)} of {result.checked} gradients differ "
                f"from the unplanned ones ({result.differing[0]} first); plan {plan.plan_id} is "
                "removed and training goes on without one"
            )


def _placed(rung: Rung, plan: Plan) -> tuple[Plan, Program]:
    """The plan as the tape runs it: its program, and what that peaks at."""
    program = compile_plan(rung.graph, plan.schedule)
    if rung.fitted:
        return plan, program  # for sizes that nobody has seen
    stands = peak_of(rung.graph, plan.schedule)
    reserve = max(0, plan.peak_bytes - stands - rung.extra_bytes)
    placed = place(rung.graph, plan.schedule, plan.peak_bytes - reserve)
    if placed.early:
        try:
            program = compile_plan(rung.graph, placed.schedule)
        except RepriseError:
            placed = place(rung.graph, plan.schedule, plan.peak_bytes, late=True)
    return replace(plan, peak_bytes=placed.peak_bytes + reserve), program


def _before_optimizers(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for session in tuple(_open):
        session._safely(session._before_optimizer, optimizer)


def _after_optimizers(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for session in tuple(_open):
        session._safely(session._after_optimizer, optimizer)


def capturing() -> Capture | None:
    """The capture that is under way in this process."""
    return _capturing[0]._capture if _capturing else None


def graph_bytes(message: dict[str, Any], rung: int, budget: str) -> bytes:
    """The message as it is sent. Its bytes are its identity: one per rung and budget."""
    named = message if rung == 1 else {**message, "name": f"{message['name']} #{rung}"}
    if budget.isdigit():
        named = {**named, "name": f"{named['name']} within {budget}"}
    return json.dumps(named, separators=(",", ":")).encode()
