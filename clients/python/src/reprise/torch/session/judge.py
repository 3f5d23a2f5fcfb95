# SPDX-License-Identifier: Apache-2.0
"""Decides which planned steps are checked bit for bit, and what follows from the result.

    check = judge.begin(rung, run)       # a planned step begins
    judge.settle(run, check)             # where gradients are compared: before the optimizer
    judge.settle(run, None)              # the step is over

Checked are the first step under a plan and every n-th one: every value that is made again has the
bits of the one that was given up (values.py), in the memory of any other planned step. Asked for
"gradients", they are compared too, with those of the same step once more without a plan
(verify.py): that takes the memory of an unplanned step, and a program that can run twice unnoticed.

A plan goes when what was found is about the plan. A program whose unplanned step differs from
itself says nothing about it, nor do bytes that a kernel leaves unwritten (control.py).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import torch

from reprise.torch.check import quarantine
from reprise.torch.check.control import Control
from reprise.torch.check.values import Audit
from reprise.torch.check.verify import Check, CheckResult
from reprise.torch.ground.ops import never_again, only_allocates, partly_written
from reprise.torch.ladder.ladder import Rung
from reprise.torch.tape.tape_run import Run

if TYPE_CHECKING:
    from reprise.torch.session.session import Session

__all__ = ["GRADIENTS", "VALUES", "Judge", "Looks"]

VALUES, GRADIENTS = "values", "gradients"

# So many steps in which every call is made twice, before something is concluded.
ROUNDS = 2


class Looks(Enum):
    """How closely a step is looked at."""

    NOT = 0
    CHECKS = 1  # what is made again has the bits of what was given up
    EXPLAINS = 2  # why it has not: every call is made twice, and the step is larger than planned


class Judge:
    """The checks of one session."""

    def __init__(self, session: Session, every: int, what: str = VALUES) -> None:
        self._session = session
        self.every = every
        self._what = what
        self._since = 0
        self._known: set[int] = set()  # rungs that have been checked, and, negative, traced
        self.looks = Looks.NOT  # the step under way
        # By rung: slots whose values differed, in a step that nobody has explained yet; slots that
        # hold bytes which no kernel writes.
        self._suspects: dict[int, set[int]] = {}
        self._control: Control | None = None  # what has been found out about them
        self._unwritten: dict[int, set[int]] = {}
        self._open: Run | None = None  # its step has ended within its backward

    def begin(self, rung: Rung, run: Run) -> Check | None:
        """A planned step begins: is it checked, or traced?"""
        check = None
        due = rung.number not in self._known or self._since >= self.every
        if self._suspects.get(rung.number):
            allocating = [row.op for row in run.program.rows if only_allocates(row.func)]
            run.audit = Control(self._suspects[rung.number], allocating, self._control)
            self.looks = Looks.EXPLAINS
        elif self.every and not rung.sketch and due:
            self._since = 0
            self._known.add(rung.number)
            self.looks = Looks.CHECKS
            run.audit = Audit()
            # Where nothing fits without a plan, no reference does.
            if self._what == GRADIENTS and not rung.leaks and self._session.first.host is None:
                check = Check(self._session.model, rung.left_out)
        elif -rung.number not in self._known:
            self._known.add(-rung.number)
            # Not the first: its check would be in the picture.
            self._session.step.tracing.begin(run)
        self._since += 1
        return check

    # ---- What was found --------------------------------------------------------------

    def settle(self, run: Run | None, check: Check | None) -> None:
        """The backward is over."""
        audit = None if run is None else run.take_audit()
        if run is None or audit is None:
            return
        if isinstance(audit, Control):
            self._explained(run, audit)
            return
        rung = self._session.planning.rung
        assert rung is not None
        left_out = self._unwritten.get(rung.number, set()) | _partly_written(rung)
        differing = [slot for slot in audit.differing if slot not in left_out]
        if differing:
            # The next step finds out why.
            self._suspects[rung.number] = set(differing)
            self._control = None
            if check is not None:
                check.stop()
            return
        values = CheckResult(audit.checked, (), left_out=len(left_out), values=True)
        if check is not None and self._compare(check):
            return
        if values.checked or not any(run.program.slots):
            self._equal(values)
        else:
            self._since = self.every  # nothing came to be made again: the next step is checked
            self._unchecked("no tensor that was given up was asked for in the step")

    def later(self, run: Run | None) -> None:
        """Its step has ended within its backward: it is judged when the next one begins."""
        self._open = run

    def postpone(self, run: Run | None) -> None:
        """Its step is given up: a check that was due is made in the next one."""
        if run is not None and run.take_audit() is not None:
            self._since = self.every
            self._unchecked("the step that was to be checked was not finished")

    def settle_open(self) -> None:
        """The next step begins."""
        run, self._open = self._open, None
        self.settle(run, None)

    def _compare(self, check: Check) -> bool:
        """Gradients, too. False: they could not be compared, and nothing is known about them."""
        session = self._session
        session.busy = True
        try:
            result = check.compare(session.forward.plain)
        except Exception as error:
            # The reference is ours: its failure must not be the job's. Out of memory, mostly.
            self._values_only(f"an unplanned run of the step failed: {error}")
            return False
        finally:
            session.busy = False
        if not result.repeatable:
            self._values_only(
                "without a plan the step has other gradients each time it runs (kernels that add "
                "in a changing order, or a state that is kept outside of the model). That says "
                "nothing about the plan, which stays"
            )
            return False
        if not result.checked:
            self._values_only("the step cannot run twice unnoticed")
            return False
        session.measured.verify_peak_bytes = max(
            session.measured.verify_peak_bytes, session.meter.peak()
        )
        if result.differing:
            many, first = f"{len(result.differing)} of {result.checked}", result.differing[0]
            self._blame(result, f"{many} gradients differ from the unplanned ones ({first} first)")
        else:
            self._equal(result)
        return True

    def _values_only(self, why: str) -> None:
        session = self._session
        session.measured.why_values = why
        session.say(
            f"step {session.step.number}: gradients are not compared: {why}. Values that are made "
            "again are compared with those that were given up"
        )
        if session.planning.rung is not None:
            session.planning.rung.leaks = True

    def _explained(self, run: Run, control: Control) -> None:
        """A step has shown why values differed, or whether they do."""
        session = self._session
        rung = session.planning.rung
        assert rung is not None
        slots = control.unexplained
        if slots and control.rounds < ROUNDS:
            self._control = control
            return
        self._suspects.pop(rung.number, None)
        self._control = None
        self._since = self.every  # the next step is checked again
        self._unwritten.setdefault(rung.number, set()).update(control.unwritten)
        funcs = {row.func for row in run.program.rows if row.op in control.noisy and row.replays}
        if slots and funcs:
            never_again(funcs)
            names = ", ".join(sorted(map(str, funcs)))
            session.planning.again(
                f"{names} makes other bits each time it runs on the same input: it is not run "
                "again, and another plan is made"
            )
        elif slots:
            found = tuple(f"saved tensor {slot}" for slot in slots)
            self._blame(
                CheckResult(control.checked, found, values=True),
                f"{len(slots)} of {control.checked} values that were made again differ from those "
                f"that were given up ({found[0]} first)",
            )

    def _equal(self, result: CheckResult) -> None:
        self._report(result)

    def _blame(self, result: CheckResult, what: str) -> None:
        session = self._session
        rung, step = session.planning.rung, session.step.number
        assert rung is not None
        assert rung.plan is not None
        plan = rung.plan
        self._report(result)
        report = {"step": step, "differing": result.differing, "torch": torch.__version__}
        quarantine.put(plan, rung.graph.to_json(), report)
        session.planning.drop(
            f"step {step}: {what}; plan {plan.plan_id} is removed and training goes on without one"
        )

    def _report(self, result: CheckResult) -> None:
        session = self._session
        rung = session.planning.rung
        assert rung is not None
        assert rung.plan is not None
        session.measured.checked(result)
        session.record.check(session.step.number, rung.plan, result)

    def _unchecked(self, why: str) -> None:
        rung = self._session.planning.rung
        if rung is not None and rung.plan is not None:
            self._session.record.unchecked(rung.plan, why)


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
