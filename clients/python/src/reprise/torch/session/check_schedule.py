# SPDX-License-Identifier: Apache-2.0
"""Decides which planned steps are checked bit for bit, and what follows from the result.

    check = judge.begin(rung, run)       # a planned step begins
    judge.settle(run, check)             # where gradients are compared: before the optimizer
    judge.settle(run, None)              # the step is over

Checked are the first step under a plan and every n-th one: every value that is made again has the
bits of the one that was given up (values.py), in the memory of any other planned step. Asked for
"gradients", they are compared too, with those of the same step once more without a plan
(verify.py): that takes the memory of an unplanned step, and a program that can run twice unnoticed.
Either way, no buffer of the model is written by what runs again (written.py).

A plan goes when what was found is about the plan. A program whose unplanned step differs from
itself says nothing about it, nor do bytes that a kernel leaves unwritten (control.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from reprise.torch.check.control import Control
from reprise.torch.check.result import GRADIENTS, CheckResult
from reprise.torch.check.values import Audit
from reprise.torch.check.verify import Check
from reprise.torch.check.written import Written, buffers_of
from reprise.torch.internals import guard
from reprise.torch.internals.ops import only_allocates, partly_written
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung
from reprise.torch.planning.planning import Planning
from reprise.torch.policy.events import Explained, PlannedStepBegins
from reprise.torch.policy.policy import Action
from reprise.torch.session.findings import Explanation, Findings
from reprise.torch.tape.executor import TapePlan
from reprise.torch.tape.tape_run import Run


class Looks(Enum):
    """How closely a step is looked at."""

    NOT = 0
    CHECKS = 1  # what is made again has the bits of what was given up
    EXPLAINS = 2  # why it has not: every call is made twice, and the step is larger than planned


@dataclass(slots=True)
class _Known:
    """What is known of one plan."""

    number: int  # of its rung
    is_checked: bool = False  # a step under it was
    is_traced: bool = False  # a step under it was recorded in detail
    # Of a step that nobody has explained yet: slots whose values differed, and buffers that were
    # written once more.
    suspects: set[int] = field(default_factory=set)
    rewritten: set[str] = field(default_factory=set)
    unwritten: set[int] = field(default_factory=set)  # slots that hold bytes which no kernel writes


@dataclass(slots=True)
class _Begins:
    """A planned step that begins."""

    rung: Rung
    run: Run
    check: Check | None = None  # of its gradients


class CheckSchedule:
    """Decides which steps of a session are checked, and acts on the results."""

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._findings = Findings(job, planning)
        self.every = job.options.verify_every
        self._since = 0
        self._plans: weakref.WeakKeyDictionary[TapePlan, _Known] = weakref.WeakKeyDictionary()
        self._known = _Known(0)  # of the plan of the last planned step
        self.looks = Looks.NOT  # the step under way
        self._control: Control | None = None  # what has been found out about suspects
        self._open: Run | None = None  # its step has ended within its backward
        self._written: Written | None = None  # the buffers of the step under way
        # Of rewritten buffers: what the program may have written in that step only.
        self._seen: set[str] = set()
        self._theirs: set[str] = set()  # buffers that the program itself writes after a forward
        job.carry_out(
            {
                Action.LOOK_TWICE: self._look_twice,
                Action.CHECK_VALUES: self._check_values,
                Action.CHECK_GRADIENTS: self._check_gradients,
                Action.TRACE: self._trace,
                Action.EXCLUDE_NOISY: self._findings.exclude_noisy,
                Action.EXCLUDE_WRITING: self._findings.wrote,
                Action.BLAME_BUFFERS: self._findings.wrote,
                Action.BLAME_VALUES: self._findings.blame_values,
            }
        )

    def begin(self, rung: Rung, run: Run) -> Check | None:
        """Begins the checks of a planned step; returns its gradient check, or None."""
        job, known = self._job, self._of(rung)
        self._known = known
        event = PlannedStepBegins(
            every=self.every,
            since=self._since,
            is_known=known.is_checked,
            is_traced=known.is_traced,
            is_suspect=bool(known.suspects or known.rewritten),
            is_sketch=bool(rung.sketch),
            asks_for_gradients=job.options.verify == GRADIENTS,
            # Where nothing fits without a plan, no reference does.
            can_compare=not rung.leaks and job.host is None,
        )
        self._written = None
        begins = _Begins(rung, run)
        job.happened(event, begins)
        self._since += 1
        return begins.check

    def _look_twice(self, step: _Begins) -> None:
        allocating = [row.op for row in step.run.program.rows if only_allocates(row.func)]
        buffers = self._rewritten_buffers()
        step.run.audit = Control(self._known.suspects, allocating, self._control, buffers)
        self._written = Written(self._job.model)
        self.looks = Looks.EXPLAINS

    def _check_values(self, step: _Begins) -> None:
        self._since = 0
        self._known.is_checked = True
        self.looks = Looks.CHECKS
        step.run.audit = Audit()
        self._written = Written(self._job.model)

    def _check_gradients(self, step: _Begins) -> None:
        step.check = Check(self._job.model, step.rung.left_out)

    def _trace(self, step: _Begins) -> None:
        self._known.is_traced = True
        self._job.step.tracing.begin(step.run)

    def _of(self, rung: Rung) -> _Known:
        """Returns what is known of the plan of a rung: nothing of another one in its place, or
        under another number, because the first step of every plan is checked."""
        assert rung.planned is not None
        known = self._plans.get(rung.planned)
        if known is None or known.number != rung.number:
            known = self._plans[rung.planned] = _Known(rung.number)
        return known

    def _rewritten_buffers(self) -> Callable[[], dict[str, Tensor]]:
        """Returns a function that returns the buffers that were written once more."""
        names, model = self._known.rewritten, self._job.model
        if not names:
            return dict
        return lambda: {n: b for n, b in buffers_of(model).items() if n in names}

    # ---- Its forwards ------------------------------------------------------------------

    def enters(self) -> None:
        """Notes that a forward of the root begins."""
        if self._written is not None:
            self._written.enters()

    def left(self) -> None:
        """Notes that a forward of the root is over."""
        if self._written is not None:
            self._written.left()

    # ---- What was found --------------------------------------------------------------

    def settle(self, run: Run | None, check: Check | None) -> None:
        """Evaluates the checks of a step whose backward is over."""
        audit = None if run is None else run.take_audit()
        if run is None or audit is None:
            return
        if audit.lost:
            self._findings.lost(audit)
        written, self._written = self._written, None
        rewritten = [] if written is None else written.differing()
        if isinstance(audit, Control):
            self._explained(run, audit, rewritten)
            return
        rung, known = self._job.plans.rung, self._known
        assert rung is not None
        left_out = known.unwritten | _partly_written(rung)
        differing = [slot for slot in audit.differing if slot not in left_out]
        rewritten = [name for name in rewritten if name not in self._theirs]
        if differing or rewritten:
            # The next step finds out why.
            known.suspects, known.rewritten = set(differing), set(rewritten)
            self._seen = set() if written is None else written.seen
            self._control = None
            if check is not None:
                check.stop()
            return
        values = CheckResult(
            audit.checked,
            (),
            left_out=len(left_out),
            values=True,
            buffers=0 if written is None else written.checked,
        )
        if check is not None and self._compare(check):
            return
        if values.checked or not any(run.program.slots):
            self._findings.report(values)
        else:
            self._since = self.every  # nothing came to be made again: the next step is checked
            self._findings.unchecked("no discarded tensor was needed in the step")

    def later(self, run: Run | None) -> None:
        """Postpones the evaluation of a step that has ended within its backward until the next
        one begins."""
        self._open = run
        if self._written is not None:
            # What the program does to buffers until then is no business of a check.
            close = guard.quiet(self._written.close)
            torch.autograd.Variable._execution_engine.queue_callback(close)

    def postpone(self, run: Run | None) -> None:
        """Makes a check that was due in the next step, because this one is given up."""
        self._written = None
        if run is not None and run.take_audit() is not None:
            self._since = self.every
            self._findings.unchecked("the step to be checked did not finish")

    def settle_open(self) -> None:
        """Evaluates checks that are still open when the next step begins."""
        run, self._open = self._open, None
        if run is not None:
            self.settle(run, None)

    def _compare(self, check: Check) -> bool:
        """Compares gradients, too. Returns False if they could not be compared, so that nothing
        is known about them."""
        job = self._job
        job.busy = True
        try:
            assert job.forward is not None
            result = check.compare(job.forward.plain)
        except Exception as error:
            # The reference is ours: its failure must not be the job's. Out of memory, mostly.
            why = guard.described(error)
            self._findings.values_only(f"an unplanned run of the step failed ({why})")
            return False
        finally:
            job.busy = False
        if not result.checked:
            self._findings.values_only(result.why_unchecked())
            return False
        job.measured.verify_peak_bytes = max(job.measured.verify_peak_bytes, job.meter.peak())
        if result.differing:
            what = f"{result.what_differs()} from the unplanned ones"
            self._findings.blame(result, f"{what} ({result.differing[0]} first)")
        else:
            self._findings.report(result)
        return True

    def _explained(self, run: Run, control: Control, rewritten: Sequence[str]) -> None:
        """Acts on what a step has shown about values that differed. `rewritten`: buffers that
        were written in its backward by no call that it looked at."""
        job, known, slots = self._job, self._known, control.unexplained
        theirs = self._theirs.union(rewritten)
        if not control.writers:
            theirs |= known.rewritten & self._seen
        written = sorted(known.rewritten - theirs)
        again = [row for row in run.program.rows if row.replays]
        noisy = {row.func for row in again if row.op in control.noisy}
        writers = {row.func for row in again if row.op in control.writers}
        event = Explained(control.rounds, bool(slots), bool(noisy), bool(written), bool(writers))
        if Action.LOOK_AGAIN in job.happened(event, Explanation(control, written, noisy, writers)):
            self._control = control
            return
        known.suspects, known.rewritten = set(), set()
        known.unwritten.update(control.unwritten)
        self._theirs = theirs
        self._control, self._since = None, self.every  # the next step is checked again


def _partly_written(rung: Rung) -> set[int]:
    """Slots of saved tensors that hold bytes which their kernel is known to leave unwritten."""
    step = rung.graph.step
    found = set()
    for slot, saved in enumerate(step.slots):
        maker = step.ops[saved.storage.birth]
        for position in partly_written(maker.func):
            if position < len(maker.outputs) and maker.outputs[position] is saved.storage:
                found.add(slot)
    return found
