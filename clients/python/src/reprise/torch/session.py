# SPDX-License-Identifier: Apache-2.0
"""One armed model: from the first plain steps to planned and verified ones.

    WARMUP --n plain steps--> CAPTURE --one step--> WAITING --plan--> PLANNED
                                 ^                     | refused          | gradients differ,
                                 |                     v                  v plan cannot run
                                 +--- 3 mismatches -- PLAIN <-------------+

A step begins with the first forward of the model after the last optimizer step and ends when the
optimizer has stepped. Forwards that do not train (evaluation, no_grad) are not steps. Plans change
between steps only. Whatever goes wrong here, the job trains on as if nobody watched; what was
decided is said once, on standard error.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
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
from reprise.agent import Agent
from reprise.errors import RepriseError
from reprise.plan import Plan
from reprise.torch.capture import FORWARD, Capture
from reprise.torch.forward import ArmedForward
from reprise.torch.measure import Measured
from reprise.torch.meter import Meter
from reprise.torch.program import compile_plan
from reprise.torch.state import alive_tensors, blocked, known_names, model_device, now_ns
from reprise.torch.step_graph import CapturedGraph, build
from reprise.torch.tape import Run, Tape
from reprise.torch.verify import Check

__all__ = ["Session", "Stage"]

# A structure that differs this many steps in a row is captured again, this often at most.
MISMATCHES_BEFORE_CAPTURE = 3
MAX_CAPTURES = 4


# Sessions of this process: they share one agent.
_open: set[Session] = set()


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
        ns_per_op: int,
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
        self.plan: Plan | None = None
        self.graph: CapturedGraph | None = None
        self.measured = Measured(budget)
        self._verify_every = verify_every
        self._warmup = max(1, warmup)
        self._wait_s = wait_s
        self._ns_per_op = ns_per_op
        self._pid = os.getpid()
        self._device = model_device(model)
        self._parameters = {id(p) for p in model.parameters()}
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._step = 0
        self._in_step = False
        self._in_forward = False
        self._in_optimizer = False
        self._busy = False
        self._begin_ns = 0
        self._capture: Capture | None = None
        self._captures = 0
        self._mismatched = 0
        self._tape: Tape | None = None
        self._run: Run | None = None
        self._check: Check | None = None
        self._since_check = 0
        self._checked = False
        self._left_out: frozenset[str] = frozenset()
        self._window = False
        self._peak = 0
        self._graph_id: int | None = None
        self._said: set[str] = set()
        self._forward = ArmedForward(model, self._around)
        _open.add(self)
        atexit.register(self.close)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]

    @property
    def model(self) -> nn.Module:
        """The armed model."""
        model = self._model()
        if model is None:
            raise RepriseError("the model of this session is gone")
        return model

    def _gone(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.meter.stop()
        self.close()

    def remove(self) -> None:
        """Takes every hook out; the model is as it was. Idempotent."""
        self._abandon()
        if self.plan is not None and self._tape is not None:
            self.agent.plan_state(self.plan.plan_number, abi.PLAN_STOPPED, "removed")
        self._forward.remove()
        self._gone()
        self.stage, self._tape = Stage.PLAIN, None

    def close(self) -> None:
        """Ends this model's part of the agent's session; the last one ends the session, so that
        what was reported arrives and the run is seen to end and not to die."""
        _open.discard(self)
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
        if not self._trains():
            return call(*args, **kwargs)
        if not self._in_step:
            self._begin_step()
        self._in_forward = True
        try:
            if self._check is not None:
                self._check.enter(args, kwargs)
            if self._capture is not None:
                with self._capture.region() as pin:
                    out = call(*args, **kwargs)
                    pin(out)
            elif self._tape is not None and self._run is not None:
                why = blocked()
                if why:
                    self._run.mismatch(why)
                    if self._check is not None:
                        self._check.stop()
                        self._check = None
                    return call(*args, **kwargs)
                with self._tape.region():
                    out = call(*args, **kwargs)
            else:
                out = call(*args, **kwargs)
        except BaseException:
            # The step may be tried again, or given up: a capture of half a step is worth nothing.
            self._abandon()
            raise
        finally:
            self._in_forward = False
        if self._check is not None:
            self._check.leave(out)
        return out

    def _trains(self) -> bool:
        return (
            self.model.training
            and torch.is_grad_enabled()
            and not (self._in_forward or self._busy or self._in_optimizer)
            and os.getpid() == self._pid
            and not torch.compiler.is_compiling()
        )

    # ---- A step ---------------------------------------------------------------

    def _begin_step(self) -> None:
        self._step += 1
        if self._graph_id is not None:
            self._ask_for_plan()
        self._in_step, self._window = True, False
        if self.stage is Stage.CAPTURE:
            why = blocked()
            if why:
                self.stop_planning(f"trains without a plan: {why}")
            else:
                self._trace(True)
                self._capture = Capture(self.model, self.meter)
                prior = alive_tensors(self._device)
                self._capture.begin(prior, known_names(self.model, list(self._optimizers)))
                del prior
        elif self._tape is not None:
            self._run = self._tape.begin()
            planned = self.measured.planned_steps
            if self._verify_every and (planned == 0 or self._since_check >= self._verify_every):
                self._since_check = 0
                self._check = Check(self.model, self._left_out)
            elif planned == 1:
                self._trace(True)  # not the first: its check would be in the picture
            self._since_check += 1
        self.agent.step(self._step)
        self._peak = 0
        if self._capture is None:
            self.meter.reset_peak()
        self._begin_ns = now_ns(self._device)

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._in_step or not self._owns(optimizer):
            return
        self._optimizers.add(optimizer)
        self._in_optimizer = True
        if self._capture is not None:
            self._capture.enter_optimizer()
        if self._check is not None:
            began = now_ns(self._device)
            self._peak = self.meter.peak()
            check, self._check = self._check, None
            self._compare(check)
            del check
            self.meter.reset_peak()
            self._begin_ns += now_ns(self._device) - began

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not (self._in_step and self._in_optimizer and self._owns(optimizer)):
            return
        step_ns = now_ns(self._device) - self._begin_ns
        self._in_step = self._in_optimizer = False
        capture, self._capture = self._capture, None
        if capture is not None:
            self._finish_capture(capture)
            self._trace(False)
            return
        self._end_step(step_ns, max(self._peak, self.meter.peak()))
        self._trace(False)

    def _owns(self, optimizer: Optimizer) -> bool:
        return any(
            id(p) in self._parameters for group in optimizer.param_groups for p in group["params"]
        )

    def _end_step(self, step_ns: int, peak: int) -> None:
        run, self._run = self._run, None
        checked, self._checked = self._checked, False
        flags, plan_id, replayed, mismatches = 0, 0, 0, 0
        if run is not None and self.plan is not None:
            run.finish()
            counts = run.counts
            plan_id, replayed = self.plan.plan_number, counts.replayed + counts.on_demand
            mismatches = counts.mismatches
            flags |= abi.STEP_PLANNED
            if mismatches:
                flags |= abi.STEP_KEPT_ALL
            quiet = not (self._window or checked or mismatches)
            self.measured.planned(step_ns, peak, representative=quiet)
            self._count_mismatch(counts.mismatches, counts.first_mismatch)
        else:
            self.measured.plain(step_ns, peak)
        if self._window:
            flags |= abi.STEP_WINDOW
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

    def _count_mismatch(self, mismatches: int, what: str) -> None:
        if not mismatches:
            self._mismatched = 0
            return
        self.measured.mismatched_steps += 1
        self._mismatched += 1
        if self._mismatched >= MISMATCHES_BEFORE_CAPTURE:
            self._mismatched = 0
            if self._captures >= MAX_CAPTURES:
                self._drop_plan(f"the step keeps changing ({what})")
            else:
                self._drop_plan(f"the step has changed ({what}); capturing it again")
                self.stage = Stage.CAPTURE

    def _abandon(self) -> None:
        """Forgets the step that is under way."""
        if self._capture is not None:
            self._capture.leave()
            self._capture = None
        if self._check is not None:
            self._check.stop()
            self._check = None
        if self._run is not None and self._run.armed:
            self._run.mismatch("the forward failed")
        self._trace(False)
        self._in_step = self._in_step and self._run is not None

    def _trace(self, on: bool) -> None:
        """Allocator events to the agent, for the steps that pages draw."""
        if on:
            self._window = True
            self.meter.events_begin(self.agent)
        elif self._window:
            self.meter.events_end()

    # ---- Graph and plan ---------------------------------------------------------

    def _finish_capture(self, capture: Capture) -> None:
        step = capture.finish()
        self._captures += 1
        self.agent.step_done(
            self._step, step_ns=step.step_ns, peak_bytes=step.peak_bytes, flags=abi.STEP_WINDOW
        )
        self.stage = Stage.WAITING
        self.graph = graph = build(
            step,
            name=self.name,
            measured_peak_bytes=self.measured.base_peak_bytes,
            measured_step_ns=self.measured.base_step_ns,
        )
        outside = {
            id(s) for op in step.ops if op.phase == FORWARD and not op.in_region for s in op.reads
        }
        self._left_out = frozenset(s.name for s in step.storages if id(s) in outside and s.name)
        capabilities = f"tape:seeded_ok=1:ns_per_op={self._ns_per_op}"
        assert self.budget is not None
        try:
            self._graph_id = self.agent.submit_graph(
                graph.to_json(), self.budget, capabilities, graph.static_bytes
            )
        except RepriseError as error:
            self.stop_planning(f"trains without a plan: {error}")
            return
        if self._graph_id is None:
            self.stop_planning(f"trains without a plan: {self.agent.why}")

    def _ask_for_plan(self) -> None:
        """Between steps: waits for the first plan, takes a newer one when it is there."""
        assert self._graph_id is not None
        have = 0 if self.plan is None else self.plan.plan_number
        waiting = self.stage is Stage.WAITING
        try:
            reply = (
                self.agent.wait_plan(self._graph_id, have, self._wait_s)
                if waiting
                else self.agent.poll_plan(self._graph_id, have)
            )
        except RepriseError as error:
            if waiting:
                self.stop_planning(f"trains without a plan: {error}")
            return
        if reply.kind == "plan" and reply.plan is not None:
            if reply.plan.feasible:
                self._install(reply.plan)
            else:
                self.stop_planning(reply.plan.sentence or "no plan fits the budget")
                self.plan = reply.plan
        elif reply.kind == "refused" and waiting:
            self.measured.smallest_budget = reply.smallest_budget
            self.stop_planning(reply.why or "the server refused to plan this step")
        elif reply.kind == "inert" and waiting:
            self.stop_planning(f"trains without a plan: {reply.why or self.agent.why}")
        elif reply.kind == "pending" and waiting:
            self.say(f"no plan after {self._wait_s:.0f} s; trains without one until it comes")
            self.stage = Stage.PLAIN

    def _install(self, plan: Plan) -> None:
        assert self.graph is not None
        try:
            tape = Tape(compile_plan(self.graph, plan.schedule))
        except RepriseError as error:
            self.agent.plan_state(plan.plan_number, abi.PLAN_REFUSED, str(error))
            self.plan = plan
            if self._tape is None:
                self.stop_planning(f"trains without a plan: {error}")
            return
        self._tape, self.plan = tape, plan
        self.stage = Stage.PLANNED
        self.measured.new_plan()
        self.agent.plan_state(plan.plan_number, abi.PLAN_APPLIED)
        if plan.sentence:
            self.say(plan.sentence)

    def _drop_plan(self, why: str) -> None:
        if self.plan is not None:
            self.agent.plan_state(self.plan.plan_number, abi.PLAN_STOPPED, why)
        self.plan, self._graph_id = None, None
        self.stop_planning(why)

    def stop_planning(self, why: str) -> None:
        """No plan from here on."""
        self._tape, self.stage, self.why = None, Stage.PLAIN, why
        self.say(why)

    # ---- Verification -------------------------------------------------------------

    def _compare(self, check: Check) -> None:
        assert self.plan is not None
        self._busy = self._checked = True
        try:
            result = check.compare(self._forward.plain)
        except Exception as error:
            # The reference is ours: its failure must not be the job's. Out of memory, mostly.
            self.say(f"step {self._step} could not be verified: {error}")
            return
        finally:
            self._busy = False
        self.measured.checked(result)
        equal = not result.differing
        self.agent.verify(
            self._step,
            plan_id=self.plan.plan_number,
            checked=result.checked,
            differing=len(result.differing),
            flags=abi.VERIFY_BITWISE if equal else abi.VERIFY_FAILED,
            first_name=0 if equal else self.agent.intern(result.differing[0]),
        )
        if not equal:
            plan = self.plan
            self._drop_plan(
                f"step {self._step}: {len(result.differing)} of {result.checked} gradients differ "
                f"from the unplanned ones ({result.differing[0]} first); plan {plan.plan_id} is "
                "removed and training goes on without one"
            )
