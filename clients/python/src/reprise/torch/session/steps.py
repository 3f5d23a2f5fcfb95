# SPDX-License-Identifier: Apache-2.0
"""The steps of one model, one after another: plain, captured, or under a plan.

    steps.begin(args, kwargs)             # the first forward after the last step ended
    out = steps.forward(call, args, kwargs)
    steps.before_optimizer(...); steps.after_optimizer(...)
    steps.abandon()                       # it failed, or the model is let go

A step ends when its optimizers have stepped (optimizers.py), or, without one, when its parameters
were updated and the next forward begins (updates.py). Which plan it runs under is the ladder's
choice (ladder.py), made when it begins. What is known of it is in `job.step`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from reprise.agent import abi
from reprise.torch.capture.capture import Capture
from reprise.torch.capture.captured import BACKWARD, FORWARD, OPTIMIZER
from reprise.torch.internals.dynamo import compiled_in_pieces
from reprise.torch.internals.dynamo import watch as watch_compiled
from reprise.torch.internals.watch import close_watches, resume
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.ranks import coming
from reprise.torch.ladder.rung import Rung, key_of
from reprise.torch.meter.state import (
    alive_tensors,
    blocked,
    known_names,
    missing_gradients,
    now_ns,
    surrounded,
)
from reprise.torch.meter.windows import KernelWindow, OpRecorder
from reprise.torch.policy.events import StepBegins
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage
from reprise.torch.session.first_calls import FirstCalls
from reprise.torch.session.late_frees import LateFrees
from reprise.torch.session.parts import Parts
from reprise.torch.tape.optimizer_state import StateOnHost
from reprise.torch.tape.tape import Tape
from reprise.torch.tape.tape_run import Run
from reprise.torch.training.loop import open_loops

_capturing: list[EagerJob] = []  # one at a time in a process


def capturing() -> Capture | None:
    """Returns the capture that is under way in this process, or None."""
    return _capturing[0].step.capture if _capturing else None


class Steps:
    """Moves the step of one job on."""

    def __init__(self, job: EagerJob, parts: Parts) -> None:
        self._job = job
        self._parts = parts
        self._now = job.step
        self._keeps_capture = True
        self._kernel_window = KernelWindow(job.agent, job.device)  # around a captured step
        self._tried = 0  # captures given up
        self._sketch: Rung | None = None  # whose plan the captured step runs under
        # The thread of the step under way, whether all of the step runs there, and whether the
        # step before did not. Modes and hooks that lie over a whole step are of one thread.
        self._thread = threading.get_ident()
        self._one_thread = True
        self._scattered = False
        self._late, self._first_calls = LateFrees(job), FirstCalls(job)
        self._is_met = True  # the other ranks were met after the last step, or it was no time to
        self._state: StateOnHost | None = None  # of optimizers, which may be on the host now
        self._observed = False  # nothing is decided of the step under way, as of later ones

    # ---- It begins ------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, again: bool = False) -> None:
        """Begins a step, whose first forward is about to run. `again`: the step has run out of
        memory."""
        job, now, parts = self._job, self._now, self._parts
        parts.checks.settle_open()
        now.times.read()
        now.number += 1
        here = threading.get_ident()
        self._scattered = not (self._one_thread and self._thread == here)
        self._thread, self._one_thread = here, True
        now.tracing.ops = not self._scattered
        now.cycle.restart()
        now.key = key_of(args, kwargs, job.device.type, job.alive())
        self._observed = job.budget is None and job.stage is Stage.PLAIN and not parts.ranks.unknown
        if self._observed:
            now.under_way, now.tracing.on, now.run = True, False, None
            self._count()
            now.times.begin()
            return
        first = self._first_calls.begins(now.key)
        parts.planned_retry.forget()
        self._meet_ranks()
        parts.planning.ask()
        parts.startup.begin(args, kwargs)
        now.under_way, now.tracing.on, now.run = True, False, None
        captures = self._wants_capture(again, first) and self._begin_capture()
        if not captures and job.stage in (Stage.CAPTURE, Stage.PLANNED):
            self._begin_planned()
        if job.host is not None and now.capture is None and now.run is None:
            self._begin_capture(keep=False)  # never plainly
        self._count()
        now.live_begin = job.meter.live()
        now.missing = missing_gradients(job.model) if job.state.several_ranks else 0
        if now.run is not None and job.plans.rung is not None:
            self._late.begin(job.plans.rung)
        now.times.begin()

    def _count(self) -> None:
        """Tells the agent of the step that begins, and counts its memory from here on."""
        job, now, progress = self._job, self._now, self._parts.progress
        job.agent.step(now.number)
        progress.begin(now.run)
        progress.enter(FORWARD)
        if job.agent.window_kinds() and not now.tracing.on:
            now.tracing.begin(now.run)  # the collector asked
        now.peak = now.forwards = 0
        if now.capture is None:
            job.meter.reset_peak()

    def _wants_capture(self, again: bool, first: bool) -> bool:
        """Returns whether the step that begins is captured. `again`: it has run out of memory;
        `first`: the first one with an input of its size."""
        job, parts = self._job, self._parts
        if parts.ranks.unknown:
            return False  # whether there are other ranks is not known yet
        alone, ladder = not job.state.several_ranks, job.plans.ladder
        if alone and job.stage is Stage.PLANNED and ladder.is_settled(self._now.key):
            return False  # the policy would ask for a new kind of step
        inert = job.agent.status == "inert"
        event = StepBegins(again, first, other_captures=bool(_capturing), is_inert=inert)
        actions = job.happened(event)
        if Action.CAPTURE_IF_WATCHED in actions:
            return parts.page.wants()
        if Action.CAPTURE_IF_RANKS_DO in actions:
            return parts.ranks.wants()
        if Action.CAPTURE_IF_CHANGED in actions:
            return parts.retry.wants(self._now.key)
        return Action.CAPTURE_IF_NEW in actions and ladder.wants(self._now.key)

    def _begin_capture(self, keep: bool = True) -> bool:
        """Begins a capture; returns False if something of the program is in the way. `keep`:
        what is captured is planned; otherwise it only keeps saved tensors in host memory."""
        job, now = self._job, self._now
        now.times.read(wait=True)
        why = blocked()
        if self._scattered:
            why = "parts of its steps run in different threads"
        if why:
            self._tried += keep
            if self._tried > 3 and job.stage is Stage.CAPTURE and job.budget is not None:
                self._parts.planning.stop(f"training without a plan: {why}")
            return False
        _capturing.append(job)
        now.tracing.events()
        self._kernel_window.open()
        recorder = OpRecorder(job.agent)
        self._sketch = job.plans.ladder.sketch_for(now.key) if keep and job.host is None else None
        if self._sketch is not None:
            job.plans.rung = self._sketch
            assert self._sketch.tape is not None
            self._begin_tape(self._sketch.tape)
        now.capture = Capture(job.model, job.meter, recorder, self._kernel_window.traced, job.host)
        self._keeps_capture = keep
        prior = alive_tensors(job.device)
        now.capture.begin(prior, known_names(job.model, now.optimizers))
        return True

    def _begin_planned(self) -> None:
        job, now = self._job, self._now
        rung = job.plans.ladder.pick(now.key)
        if rung is None:
            return
        job.plans.rung = rung = self._parts.beside.rung_for(rung)
        tape = rung.tape
        assert tape is not None
        job.measured.shown = rung.key
        now.run = self._begin_tape(tape)
        now.check = self._parts.checks.begin(rung, now.run)
        if tape.state is not None:
            self._state = tape.state
            self._state.leaves(now.optimizers, checked=now.run.audit is not None)

    def _begin_tape(self, tape: Tape) -> Run:
        """Begins a step under a plan."""
        tape.renew()
        return tape.begin(None, *self._parts.progress.position())

    # ---- Its forwards ---------------------------------------------------------------

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs one forward of the root and returns its output."""
        now, checks, progress = self._now, self._parts.checks, self._parts.progress
        now.in_forward = True
        now.forwards += 1
        self._one_thread &= threading.get_ident() == self._thread
        if now.forwards > 1:
            progress.enter(FORWARD)  # of the first one, its step has said so
        if self._observed:
            resume()
            try:
                return call(*args, **kwargs)
            finally:
                now.in_forward = False
                progress.enter(BACKWARD)
        try:
            checks.enters()
            if now.check is not None:
                now.check.enter(args, kwargs)
            with watch_compiled(self._compiled_code):
                out = self._forward(call, args, kwargs)
        finally:
            now.in_forward = False
        progress.enter(BACKWARD)
        if now.run is not None and not now.run.armed:
            self._late.left()
        checks.left()
        if now.check is not None:
            now.check.leave(out)
        return out

    def _forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        capture = self._now.capture
        if capture is not None:
            tape = None if self._sketch is None else self._sketch.tape
            if tape is not None and tape.run.spent:
                self._begin_more(tape, tape.run)
            with capture.region(tape) as pin:
                out = call(*args, **kwargs)
                if self._now.capture is capture:
                    pin(out)
            return out
        if self._now.run is not None:
            return self._planned(self._now.run, call, args, kwargs)
        resume()
        with self._parts.op_times.around():
            return call(*args, **kwargs)

    def _begin_more(self, tape: Tape, run: Run) -> Run:
        """Begins what comes after all captured forwards: one more of them, or a step that was given
        up after its backward."""
        run.counts.other_forwards = True
        return tape.begin_more(run, *self._parts.progress.position())

    def _compiled_code(self, name: str) -> None:
        """Gives up planning or capturing the forward that runs, because code that torch.compile
        has compiled is about to run in it."""
        job, now = self._job, self._now
        if job.budget is None:
            if now.capture is not None:
                self.abandon()
                now.under_way = True
                self._parts.page.give_up()
            return
        if job.stage is Stage.PLAIN:
            return
        rung = job.plans.rung
        if now.run is not None and rung is not None and rung.tape is not None:
            rung.tape.step_aside(f"{name} is compiled")
        self.abandon()
        now.under_way = True
        self._parts.planning.drop(compiled_in_pieces([name]))

    def _planned(
        self, run: Run, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        why = surrounded()
        if why:
            # A capture of another model of ours is nothing this program has done.
            run.stand_aside("" if _capturing else why)
            self._now.stop_check()
            resume()
            return call(*args, **kwargs)
        rung = self._job.plans.rung
        assert rung is not None
        tape = rung.tape
        assert tape is not None
        if run.spent:
            audit = run.take_audit()
            run = self._now.run = self._begin_more(tape, run)
            run.audit = audit
        planned_retry = self._parts.planned_retry
        planned_retry.before(call, args, kwargs)
        with self._parts.op_times.around(rung), tape.region():
            out = call(*args, **kwargs)
        planned_retry.after(out)
        return out

    # ---- It ends --------------------------------------------------------------------

    def before_optimizer(self) -> None:
        """Notes that an optimizer of the model is about to step, and evaluates checks."""
        now = self._now
        now.in_optimizer = True
        self.state_home()
        self._one_thread &= threading.get_ident() == self._thread
        self._parts.progress.enter(OPTIMIZER)
        if now.capture is not None:
            now.capture.enter_optimizer()
        if torch._C._current_graph_task_id() != -1:
            return  # it steps in a hook of the backward, which is not over
        check, now.check = now.check, None
        if check is None:
            return
        began = now_ns(self._job.device)
        with unmeasured():
            self._parts.checks.settle(now.run, check)
            del check
        now.times.leave_out(now_ns(self._job.device) - began)

    def over(self) -> None:
        """Ends a step whose parameters were updated without an optimizer."""
        self.before_optimizer()
        self._now.in_optimizer = False
        self._ends()

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer has stepped, which may end the step."""
        self._now.in_optimizer = False
        if self._now.cycle.ends(optimizer):
            self._ends()

    def _ends(self) -> None:
        job, now, parts = self._job, self._now, self._parts
        if self._observed:
            now.under_way = False
            now.ended += 1
            self._measured()
            parts.progress.enter(0)
            return
        if parts.ranks.due:
            coming()  # what follows may take long, and the other ranks wait for it
        now.stop_check()  # its backward ran within the optimizer: the gradients have been used
        if torch._C._current_graph_task_id() == -1:
            parts.checks.settle(now.run, None)
        else:
            parts.checks.later(now.run)
        now.under_way = False
        now.ended += 1
        if now.capture is not None:
            self._end_capture(now.capture)
        else:
            now.times.leave_out(parts.op_times.spent_ns())
            self._measured()
        beyond = job.meter.take_beyond()
        if now.ended > 1 or job.host is not None:
            # The first plain step pays for what is set up once.
            job.measured.beyond_bytes = max(job.measured.beyond_bytes, beyond)
        parts.startup.end()
        if job.host is not None:
            job.host.give_back()
        parts.progress.enter(0)
        self._is_met = False
        if torch._C._current_graph_task_id() == -1:
            self._meet_ranks()  # else the backward is not over, and the next step begins with it

    def _measured(self) -> None:
        """Takes the figures of a step that was not captured."""
        job, now, step_end = self._job, self._now, self._parts.step_end
        now.times.end()
        peak = max(now.peak, job.meter.peak())
        now.tracing.end_ops()
        if self._observed:
            step_end.observed(peak)
        else:
            run, now.run = now.run, None
            step_end.over(run, peak, waited=self._late.end())
        if now.tracing.on:
            now.times.read(wait=True)  # the records of a traced step are cut at its end
        now.tracing.end()

    def _meet_ranks(self) -> None:
        """Meets the other ranks after a step, once."""
        if not self._is_met:
            self._is_met = True
            self._parts.ranks.meet()

    def _end_capture(self, capture: Capture) -> None:
        job, now, parts = self._job, self._now, self._parts
        now.capture = None
        _capturing.remove(job)
        step = capture.finish()
        planned = None if self._sketch is None else self._sketch.planned
        if planned is not None and planned.tape is not None:
            planned.tape.run.finish()
            planned.ended()
        self._kernel_window.close()
        plan = None if self._sketch is None else self._sketch.plan
        job.record.step(
            now.number,
            step_ns=step.step_ns,
            peak_bytes=step.peak_bytes,
            plan=plan,
            flags=abi.STEP_WINDOW | (abi.STEP_PLANNED if plan is not None else 0),
            is_base=self._keeps_capture,  # else saved tensors were on the host
        )
        now.tracing.end()  # before executors are measured, whose memory is not the step's
        if not step.apart:
            job.measured.without_plan(step.peak_bytes)
        self._first_calls.captured(op.name for op in step.ops)
        if not (self._keeps_capture and self._one_thread):
            return
        if job.budget is None:
            parts.page.captured(step)
        elif (made := parts.planning.captured(step)) is not None:
            parts.ranks.captured(made)

    def abandon(self) -> None:
        """Forgets the step: it may be tried again, or given up. A capture of half a step is worth
        nothing."""
        now = self._now
        close_watches()
        self._late.left()
        self._parts.op_times.forget()
        if now.capture is not None:
            self.release_capture()
            now.capture.leave()
            now.capture = None  # it may have been the last to hold the model: the session ends
            self._kernel_window.drop()
        now.stop_check()
        self._parts.checks.postpone(now.run)
        if now.run is not None and now.run.armed:
            now.run.mismatch("the forward failed")
        now.tracing.end()
        now.under_way = now.under_way and now.run is not None

    def state_home(self) -> None:
        """Has the state of optimizers on the device, before they step. A step that is given up
        leaves it where it is: there may be no room, and it comes when it is looked at."""
        state, self._state = self._state, None
        if state is not None:
            state.home()

    def drop(self) -> None:
        """Forgets the step entirely: the next forward begins another one."""
        self._now.under_way = self._now.in_optimizer = False
        self._now.run = None
        self.abandon()

    def release_capture(self) -> None:
        """Releases the capture, because the session ends."""
        if self._job in _capturing:
            _capturing.remove(self._job)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Keeps what a check needs inside the context out of the peaks of all steps under way."""
    jobs = [loop.job for loop in tuple(open_loops) if isinstance(loop.job, EagerJob)]
    under_way = [job for job in jobs if job.step.under_way]
    for job in under_way:
        job.step.peak = max(job.step.peak, job.meter.peak())
    try:
        yield
    finally:
        for job in under_way:
            job.meter.reset_peak()
