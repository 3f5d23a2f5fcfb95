# SPDX-License-Identifier: Apache-2.0
"""What follows from what a check has found: reports, and plans that go.

findings = Findings(session)
findings.report(result)                # bits are equal
findings.unchecked(why)                # a check was due and not made
findings.lost(audit)                   # wrong values have reached gradients
findings.blame(result, what)           # the plan is wrong: it goes
findings.exclude_noisy(ops); findings.wrote(...)     # ops are: another plan is made
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reprise.torch.check.control import Control
from reprise.torch.check.result import BUFFER, CheckResult
from reprise.torch.check.values import Audit
from reprise.torch.internals.ops import never_again
from reprise.torch.session.job import Job
from reprise.torch.tape.executor import TapePlan

__all__ = ["Findings"]


class Findings:
    """Acts on the results of checks in one session."""

    def __init__(self, session: Job) -> None:
        self._session = session

    def _planned(self) -> TapePlan:
        """Returns the plan under which the checked step runs."""
        rung = self._session.planning.rung
        assert rung is not None
        assert rung.planned is not None
        return rung.planned

    def exclude_noisy(self, ops: set[Any]) -> None:
        """Has ops that differ from themselves never recomputed, and another plan made."""
        never_again(ops)
        self._session.planning.recapture(
            f"{_named(ops)} gives different bits each time it runs on the same input: it is no "
            "longer recomputed, and another plan is made"
        )

    def values_only(self, why: str) -> None:
        """Says why gradients are not compared under this plan, but values."""
        session = self._session
        session.say(
            f"step {session.step.number}: gradients are not compared: {why}. Recomputed "
            "values are compared with the original ones"
        )
        if session.planning.rung is not None:
            session.planning.rung.leaks = True

    def lost(self, audit: Audit) -> None:
        """Says that values which differ were handed out, because the original ones were not
        kept."""
        step, why = self._session.step.number, audit.originals.missing or "not strided tensors"
        self._session.say(
            f"step {step}: {audit.lost} recomputed values that differ have reached its gradients: "
            f"the original ones were not kept ({why})"
        )

    def wrote(self, control: Control, buffers: Sequence[str], writers: set[Any]) -> None:
        """Withdraws a plan that has written buffers once more than the program does. `writers`:
        the ops that did, which are never recomputed again; empty: they are not known."""
        session, planned = self._session, self._planned()
        differing = tuple(BUFFER + name for name in buffers)
        result = CheckResult(control.checked, differing, values=True, buffers=len(buffers))
        many, more = len(buffers), len(buffers) > 1
        text = (
            f"{many} {'buffers' if more else 'buffer'} of the model {'were' if more else 'was'} "
            f"written twice when ops ran again ({', '.join(buffers[:3])})"
        )
        if not writers:
            self.blame(result, text)
            return
        never_again(writers)
        self.report(result)
        session.condemn(session.step.number, planned, result)
        session.planning.recapture(
            f"step {session.step.number}: {text}: {_named(writers)} writes "
            f"{'them' if more else 'it'} without declaring it. It is no longer recomputed; plan "
            f"{planned.plan.plan_id} is removed, and another one is made"
        )

    def blame(self, result: CheckResult, what: str) -> None:
        """Withdraws the plan, which is wrong, and quarantines it."""
        session, planned = self._session, self._planned()
        self.report(result)
        session.condemn(session.step.number, planned, result)
        session.planning.drop(
            f"step {session.step.number}: {what}; plan {planned.plan.plan_id} is removed and "
            "training continues without one"
        )

    def report(self, result: CheckResult) -> None:
        """Reports the result of a check."""
        session = self._session
        session.checked(session.step.number, self._planned(), result)

    def unchecked(self, why: str) -> None:
        """Reports that a check was due and not made."""
        rung = self._session.planning.rung
        if rung is not None and rung.plan is not None:
            self._session.record.unchecked(rung.plan, why)


def _named(funcs: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, funcs)))
