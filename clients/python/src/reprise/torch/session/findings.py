# SPDX-License-Identifier: Apache-2.0
"""What follows from what a check has found: reports, and plans that go.

findings = Findings(job, planning)
findings.report(result)                # bits are equal
findings.unchecked(why)                # a check was due and not made
findings.lost(audit)                   # wrong values have reached gradients
findings.blame(result, what); findings.blame_values(explanation)      # the plan is wrong: it goes
findings.exclude_noisy(explanation); findings.wrote(explanation)      # ops are: another is made
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reprise.torch.check.control import Control
from reprise.torch.check.result import BUFFER, CheckResult
from reprise.torch.check.values import Audit
from reprise.torch.internals.ops import never_again
from reprise.torch.job.job import EagerJob
from reprise.torch.planning.planning import Planning


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was found out about values and buffers that differed."""

    control: Control
    written: Sequence[str]  # buffers that were written once more
    noisy: set[Any]  # operators that differ from themselves
    writers: set[Any]  # operators that write buffers; empty: they are not known


class Findings:
    """Acts on the results of checks in one session."""

    def __init__(self, job: EagerJob, planning: Planning) -> None:
        self._job = job
        self._planning = planning

    def exclude_noisy(self, found: Explanation) -> None:
        """Has ops that differ from themselves never recomputed, and another plan made."""
        never_again(found.noisy)
        self._planning.recapture(
            f"{_named(found.noisy)} gives different bits each time it runs on the same input: it "
            "is no longer recomputed, and another plan is made"
        )

    def values_only(self, why: str) -> None:
        """Says why gradients are not compared under this plan, but values."""
        job = self._job
        job.say(
            f"step {job.step.number}: gradients are not compared: {why}. Recomputed "
            "values are compared with the original ones"
        )
        if job.plans.rung is not None:
            job.plans.rung.leaks = True

    def lost(self, audit: Audit) -> None:
        """Says that values which differ were handed out, because the original ones were not
        kept."""
        step, why = self._job.step.number, audit.originals.missing or "not strided tensors"
        self._job.say(
            f"step {step}: {audit.lost} recomputed values that differ have reached its gradients: "
            f"the original ones were not kept ({why})"
        )

    def wrote(self, found: Explanation) -> None:
        """Withdraws a plan that has written buffers once more than the program does. The ops that
        did are never recomputed again, if they are known."""
        job, planned = self._job, self._job.plans.current
        buffers, writers = found.written, found.writers
        differing = tuple(BUFFER + name for name in buffers)
        result = CheckResult(found.control.checked, differing, values=True, buffers=len(buffers))
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
        job.condemn(job.step.number, planned, result)
        self._planning.recapture(
            f"step {job.step.number}: {text}: {_named(writers)} writes "
            f"{'them' if more else 'it'} without declaring it. It is no longer recomputed; plan "
            f"{planned.plan.plan_id} is removed, and another one is made"
        )

    def blame_values(self, found: Explanation) -> None:
        """Withdraws a plan under which recomputed values differ, and nothing explains it."""
        checked = found.control.checked
        differing = tuple(f"saved tensor {slot}" for slot in found.control.unexplained)
        self.blame(
            CheckResult(checked, differing, values=True),
            f"{len(differing)} of {checked} recomputed values differ from the original ones "
            f"({differing[0]} first)",
        )

    def blame(self, result: CheckResult, what: str) -> None:
        """Withdraws the plan, which is wrong, and quarantines it."""
        job, planned = self._job, self._job.plans.current
        self.report(result)
        job.condemn(job.step.number, planned, result)
        self._planning.drop(
            f"step {job.step.number}: {what}; plan {planned.plan.plan_id} is removed and "
            "training continues without one"
        )

    def report(self, result: CheckResult) -> None:
        """Reports the result of a check."""
        job = self._job
        job.checked(job.step.number, self._job.plans.current, result)

    def unchecked(self, why: str) -> None:
        """Reports that a check was due and not made."""
        rung = self._job.plans.rung
        if rung is not None and rung.plan is not None:
            self._job.record.unchecked(rung.plan, why)


def _named(funcs: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, funcs)))
