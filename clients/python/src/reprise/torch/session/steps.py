# SPDX-License-Identifier: Apache-2.0
"""The step under way: plain, captured, or under a plan.

    step.begin(args, kwargs)             # the first forward after the last step ended
    out = step.forward(call, args, kwargs)
    step.before_optimizer(...); step.after_optimizer(...)
    step.abandon()                       # it failed, or the model is let go

A step ends when its optimizers have stepped (cycle.py), or, without one, when its parameters were
updated and the next forward begins (updates.py). Which plan it runs under is the ladder's
choice (ladder.py), made when it begins.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from reprise import abi
from reprise.torch.capture.capture import BACKWARD, FORWARD, OPTIMIZER, Capture
from reprise.torch.check.verify import Check
from reprise.torch.internals.cycle import Cycle
from reprise.torch.internals.dynamo import compiled_in_pieces
from reprise.torch.internals.dynamo import watch as watch_compiled
from reprise.torch.internals.watch import close_watches, resume
from reprise.torch.ladder.ranks import coming
from reprise.torch.ladder.rung import Key, key_of
from reprise.torch.meter.state import alive_tensors, blocked, known_names, now_ns
from reprise.torch.meter.step_times import StepTimes
from reprise.torch.meter.windows import KernelWindow, OpRecorder
from reprise.torch.policy.events import StepBegins
from reprise.torch.policy.policy import Action, decide
from reprise.torch.policy.stage import Stage
from reprise.torch.session.late_frees import LateFrees
from reprise.torch.session.parts import Parts
from reprise.torch.session.step_end import step_over
from reprise.torch.session.tracing import Tracing
from reprise.torch.tape.tape_run import Run

__all__ = ["Step", "capturing"]

_capturing: list[Step] = []  # one at a time in a process


def capturing() -> Capture | None:
    """Returns the capture that is under way in this process, or None."""
    return _capturing[0].capture if _capturing else None


class Step:
    """One step after another of one session."""

    def __init__(self, session: Parts) -> None:
        self._session = session
        self.number = 0
        self.ended = 0
        self.key = Key((), ())
        self.under_way = False
        self.in_forward = False
        self.in_optimizer = False
        self.capture: Capture | None = None
        self._keeps_capture = True
        self.run: Run | None = None
        self.check: Check | None = None
        self.out_of_memory = False
        self.tracing = Tracing(session.agent, session.meter)
        self._cycle = Cycle()
        self._kernel_window = KernelWindow(session.agent, session.device)  # around a captured step
        self._tried = 0  # captures given up
        # Of the step under way: its thread, whether all of it runs there, and whether that was not
        # so the last time. Modes and hooks that lie over a whole step are of one thread.
        self._thread = threading.get_ident()
        self._one_thread = True
        self._scattered = False
        self.times = StepTimes(session.device)
        self._peak = 0
        self._forwards = 0  # of the step under way
        self.live_begin = 0
        self._late = LateFrees(session)
        self._is_met = True  # the other ranks were met after the last step, or it was no time to

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have stepped for this model."""
        return self._cycle.optimizers

    # ---- It begins ------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, again: bool = False) -> None:
        """Begins a step, whose first forward is about to run. `again`: the step has run out of
        memory."""
        session = self._session
        session.checks.settle_open()
        self.times.read()
        self.number += 1
        here = threading.get_ident()
        self._scattered = not (self._one_thread and self._thread == here)
        self._thread, self._one_thread = here, True
        self.tracing.ops = not self._scattered
        self._cycle.restart()
        dtype = next((p.dtype for p in session.model.parameters()), None)
        self.key = key_of(args, kwargs, session.device.type, dtype)
        first = session.first_calls.begins(self.key)
        session.planned_retry.forget()
        self._meet_ranks()
        session.planning.ask()
        session.startup.begin(args, kwargs)
        self.under_way, self.tracing.on, self.run = True, False, None
        captures = self._wants_capture(again, first) and self._begin_capture()
        if not captures and session.stage is Stage.PLANNED:
            self._begin_planned()
        if session.startup.host is not None and self.capture is None and self.run is None:
            self._begin_capture(keep=False)  # never plainly
        session.agent.step(self.number)
        session.progress.begin(self.run)
        session.progress.enter(FORWARD)
        if session.agent.window_kinds() and not self.tracing.on:
            self.tracing.begin(self.run)  # the collector asked
        self._peak = self._forwards = 0
        if self.capture is None:
            session.meter.reset_peak()
        self.live_begin = session.meter.live()
        if self.run is not None and session.planning.rung is not None:
            self._late.begin(session.planning.rung)
        self.times.begin()

    def _wants_capture(self, again: bool, first: bool) -> bool:
        """Returns whether the step that begins is captured. `again`: it has run out of memory;
        `first`: the first one with an input of its size."""
        session = self._session
        inert = session.agent.status == "inert"
        if session.startup.meets:
            return False  # whether there are other ranks is not known yet
        event = StepBegins(again, first, other_captures=bool(_capturing), is_inert=inert)
        for action in decide(session.state, event):
            if action is Action.CAPTURE_IF_WATCHED:
                return session.watched.wants()
            if action is Action.CAPTURE_IF_RANKS_DO:
                ranks = session.planning.coordinator
                return ranks is not None and ranks.wants()
            if action is Action.CAPTURE_IF_CHANGED:
                return session.retry.wants(self.key)
            if action is Action.CAPTURE_IF_NEW:
                return session.ladder.wants(self.key)
        return False

    def _begin_capture(self, keep: bool = True) -> bool:
        """Begins a capture; returns False if something of the program is in the way. `keep`:
        what is captured is planned; otherwise it only keeps saved tensors in host memory."""
        session = self._session
        self.times.read(wait=True)
        why = blocked()
        if self._scattered:
            why = "parts of its steps run in different threads"
        if why:
            self._tried += keep
            if self._tried > 3 and session.stage is Stage.CAPTURE and session.budget is not None:
                session.planning.stop(f"training without a plan: {why}")
            return False
        _capturing.append(self)
        self.tracing.events()
        self._kernel_window.open()
        recorder = OpRecorder(session.agent)
        self.capture = Capture(
            session.model, session.meter, recorder, self._kernel_window.traced, session.startup.host
        )
        self._keeps_capture = keep
        prior = alive_tensors(session.device)
        self.capture.begin(prior, known_names(session.model, self._cycle.optimizers))
        return True

    def _begin_planned(self) -> None:
        session = self._session
        rung = session.ladder.pick(self.key)
        if rung is None or rung.tape is None or rung.plan is None:
            return
        session.planning.rung = rung
        session.measured.show(rung.key, rung.number)
        # Until it has matched once: then its plan holds, and it may run as fast as it can.
        host, progress = None if rung.matched else session.startup.host, session.progress
        self.run = rung.tape.begin(host=host, at=progress.at(), here=progress.here())
        self.check = session.checks.begin(rung, self.run)

    # ---- Its forwards ---------------------------------------------------------------

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs one forward of the root and returns its output."""
        progress = self._session.progress
        self.in_forward = True
        self._forwards += 1
        self._one_thread &= threading.get_ident() == self._thread
        progress.enter(FORWARD)
        try:
            self._session.checks.enters()
            if self.check is not None:
                self.check.enter(args, kwargs)
            with watch_compiled(self._compiled_code):
                out = self._forward(call, args, kwargs)
        finally:
            self.in_forward = False
        progress.enter(BACKWARD)
        if self.run is not None and not self.run.armed:
            self._late.left()
        self._session.checks.left()
        if self.check is not None:
            self.check.leave(out)
        return out

    def _forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        capture = self.capture
        if capture is not None:
            with capture.region() as pin:
                out = call(*args, **kwargs)
                if self.capture is capture:
                    pin(out)
            return out
        if self.run is not None:
            return self._planned(self.run, call, args, kwargs)
        resume()
        with self._session.op_times.around():
            return self._session.startup.forward(call, args, kwargs)

    def _compiled_code(self, name: str) -> None:
        """Gives up planning or capturing the forward that runs, because code that torch.compile
        has compiled is about to run in it."""
        session = self._session
        if session.budget is None:
            if self.capture is not None:
                self.abandon()
                self.under_way = True
                session.watched.give_up()
            return
        if session.stage is Stage.PLAIN:
            return
        rung = session.planning.rung
        if self.run is not None and rung is not None and rung.tape is not None:
            rung.tape.step_aside(f"{name} is compiled")
        self.abandon()
        self.under_way = True
        session.planning.drop(compiled_in_pieces([name]))

    def _planned(
        self, run: Run, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        why = blocked()
        if why:
            # A capture of another model of ours is nothing this program has done.
            run.stand_aside("" if _capturing else why)
            self.stop_check()
            resume()
            return call(*args, **kwargs)
        rung = self._session.planning.rung
        assert rung is not None
        assert rung.tape is not None
        if run.spent:
            # One more forward than captured, or a step that was given up after its backward.
            progress = self._session.progress
            audit = run.take_audit()
            run.counts.other_forwards = True
            run = self.run = rung.tape.begin_more(run, run.host, progress.at(), progress.here())
            run.audit = audit
        planned_retry = self._session.planned_retry
        planned_retry.before(call, args, kwargs)
        with rung.tape.region():
            out = call(*args, **kwargs)
        planned_retry.after(out)
        return out

    # ---- It ends --------------------------------------------------------------------

    def learn(self, optimizer: Optimizer) -> None:
        """Notes an optimizer that stepped outside a step: from now on it belongs to one."""
        self._cycle.learn(optimizer)

    def own_optimizer(self) -> None:
        """Forgets optimizers that update no parameter of the model itself."""
        self._cycle = Cycle()

    def meet(self, optimizer: Optimizer) -> None:
        """Collects garbage if the optimizer that is about to step replaces another one: state of
        the old one that only cycles of objects hold (of a trainer's earlier `fit`) goes before
        the new one makes its own."""
        if self._cycle.replaces(optimizer):
            gc.collect()

    def before_optimizer(self) -> None:
        """Notes that an optimizer of the model is about to step, and evaluates checks."""
        checks, session = self._session.checks, self._session
        self.in_optimizer = True
        self._one_thread &= threading.get_ident() == self._thread
        session.progress.enter(OPTIMIZER)
        if self.capture is not None:
            self.capture.enter_optimizer()
        if torch._C._current_graph_task_id() != -1:
            return  # it steps in a hook of the backward, which is not over
        check, self.check = self.check, None
        if check is None:
            return
        began = now_ns(session.device)
        with session.unmeasured():
            checks.settle(self.run, check)
            del check
        self.times.leave_out(now_ns(session.device) - began)

    def keep_peak(self) -> None:
        """Notes the peak so far, because what comes next is no part of the step."""
        self._peak = max(self._peak, self._session.meter.peak())

    def stop_check(self) -> None:
        """Ends the comparison of this step's gradients."""
        if self.check is not None:
            self.check.stop()
            self.check = None

    def over(self) -> None:
        """Ends a step whose parameters were updated without an optimizer."""
        self.before_optimizer()
        self.in_optimizer = False
        self._ends()

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer has stepped, which may end the step."""
        self.in_optimizer = False
        if self._cycle.ends(optimizer):
            self._ends()

    def _ends(self) -> None:
        if self._session.startup.meets or self._session.planning.meets:
            coming()  # what follows may take long, and the other ranks wait for it
        self.stop_check()  # its backward ran within the optimizer: the gradients have been used
        if torch._C._current_graph_task_id() == -1:
            self._session.checks.settle(self.run, None)
        else:
            self._session.checks.later(self.run)
        self.under_way = False
        self.ended += 1
        took = 0
        if self.capture is not None:
            self._end_capture(self.capture)
        else:
            self.times.leave_out(self._session.op_times.spent_ns())
            self.times.end()
            peak = max(self._peak, self._session.meter.peak())
            self.tracing.end_ops()
            took = peak - self.live_begin
            run, self.run = self.run, None
            self._late.end()
            step_over(self._session, run, peak, self._forwards)
            if self.tracing.on:
                self.times.read(wait=True)  # the records of a traced step are cut at its end
            self.tracing.end()
        beyond = self._session.meter.take_beyond()
        if self.ended > 1 or self._session.startup.host is not None:
            # The first plain step pays for what is set up once.
            self._session.measured.beyond(beyond)
        self._session.startup.end(took)
        if self._session.startup.host is not None:
            self._session.startup.host.give_back()
        self._session.progress.enter(0)
        self._is_met = False
        if torch._C._current_graph_task_id() == -1:
            self._meet_ranks()  # else the backward is not over, and the next step begins with it

    def _meet_ranks(self) -> None:
        """Meets the other ranks after a step, once."""
        if self._is_met:
            return
        self._is_met = True
        self._session.startup.meet()
        self._session.planning.meet()

    def _end_capture(self, capture: Capture) -> None:
        self.capture = None
        _capturing.remove(self)
        step = capture.finish()
        self._kernel_window.close()
        self._session.record.step(
            self.number, step_ns=step.step_ns, peak_bytes=step.peak_bytes, flags=abi.STEP_WINDOW
        )
        self.tracing.end()  # before executors are measured, whose memory is not the step's
        self._session.unplanned.ended(step.peak_bytes)
        self._session.first_calls.captured(op.name for op in step.ops)
        if self._keeps_capture and self._one_thread:
            if self._session.budget is None:
                self._session.watched.captured(step)
            else:
                self._session.planning.captured(step)

    def abandon(self) -> None:
        """Forgets the step: it may be tried again, or given up. A capture of half a step is worth
        nothing."""
        close_watches()
        self._late.left()
        self._session.op_times.forget()
        if self.capture is not None:
            self.release_capture()
            self.capture.leave()
            self.capture = None  # it may have been the last to hold the model: the session ends
            self._kernel_window.drop()
        self.stop_check()
        self._session.checks.postpone(self.run)
        if self.run is not None and self.run.armed:
            self.run.mismatch("the forward failed")
        self.tracing.end()
        self.under_way = self.under_way and self.run is not None

    def drop(self) -> None:
        """Forgets the step entirely: the next forward begins another one."""
        self.under_way = self.in_optimizer = False
        self.run = None
        self.abandon()

    def release_capture(self) -> None:
        """Releases the capture, because the session ends."""
        if self in _capturing:
            _capturing.remove(self)
