# SPDX-License-Identifier: Apache-2.0
"""Steps that leave their plan: says how they differ from the captured one.

leaving.left(rung, counts, forwards)  # a planned step has kept everything
leaving.why                           # how such steps differ; empty: none did

The first one is told at once. Later ones are told again where they differ in another way, or in the
number of forwards: a program none of whose steps is like another is told as that. The log, the
report and the page have the same words, those of `why`.
"""

from __future__ import annotations

from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung
from reprise.torch.tape.tape_run import Counts

# Numbers of such steps after which it is said how they differ: ever more rarely.
LOOKS = (1, 3, 9, 27, 81, 243)


class Leaving:
    """Tells how steps of one session differ from the captured ones."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._steps = 0
        self._first = ""
        self._differ = False  # in more than one way
        self._forwards: set[int] = set()  # the least and the most, the captured step's among them
        self.why = ""

    def left(self, rung: Rung, counts: Counts, forwards: int) -> None:
        """Says how a step of `forwards` forwards under the plan of a rung differs, which has
        kept everything."""
        what = counts.first_mismatch or "another model of this process was captured meanwhile"
        if counts.first_op is not None and rung.graph.step.ops[counts.first_op].module:
            what += f", in {rung.graph.step.ops[counts.first_op].module}"
        self._steps += 1
        self._first = self._first or what
        self._differ |= what != self._first
        assert rung.tape is not None
        of_it = {forwards, len(rung.tape.program.regions)} | self._forwards
        self._forwards = {min(of_it), max(of_it)}
        if self._steps not in LOOKS:
            return
        why = self._in_words()
        if why == self.why:
            return
        self.why = why
        job = self._job
        if rung.plan is not None:
            job.record.left(rung.plan, why)
        steps = f"step {job.step.number}" if self._steps == 1 else f"{self._steps} steps"
        job.say(f"{steps} left the plan and kept everything from there on: {why}")

    def larger(self, rung: Rung) -> None:
        """Notes a step above the budget whose input no plan is for."""
        if rung.plan is not None and not self.why:
            self.why = "its input is larger than any that has a plan"
            self._job.record.left(rung.plan, self.why)

    def _in_words(self) -> str:
        if not self._differ:
            return self._first
        text = f"in different ways, first as {self._first}"
        if len(self._forwards) > 1:
            text += f"; a step has {min(self._forwards)} to {max(self._forwards)} forwards"
        return text
