# SPDX-License-Identifier: Apache-2.0
"""What would have fitted, for a job without a budget whose memory has run out.

    answer = Answer(job)
    answer.calls(args, kwargs)      # a forward that trains begins, in a step that has
    answer.ran_out()                # memory has run out in its step
    answer.give(model)              # the error has ended the program: the last line of its log

The step is made from the shapes of its call, and a plan is asked for within what there was: what
was free and what was alive when the first step began, or what was alive when memory ran out, if
that is less, as where an allocator cannot use what is left in pieces. The graph and the plan belong
to the run, so its page shows them, too. Given once, after the program has ended: by then what it
held in its functions is gone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from typing import Any

from torch import nn

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_percent
from reprise.torch.estimation.planner import asked
from reprise.torch.estimation.shape import shapes_of
from reprise.torch.estimation.sketch import sketched
from reprise.torch.internals.distributed import several_ranks
from reprise.torch.internals.guard import is_oom
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Key
from reprise.torch.meter.room import room_on

# Share of what there was that a plan may take. On a CPU malloc keeps some of what is freed; on a
# GPU the allocator rounds, and some of it lies in fragments.
USABLE = 0.9


class Answer:
    """Answers one session that has no budget."""

    def __init__(self, job: EagerJob) -> None:
        self._job = job
        self._call: tuple[Any, Any] | None = None
        self._key: Key | None = None  # of the step to which that call belongs
        self.asked_ns = 0  # when the last call began
        # Bytes that the job could have, as it seemed when it began, and those that it had when
        # memory ran out; 0: not known.
        self._there = self._held = 0

    def calls(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers the shapes of a call of the step under way, and at the first one what there
        is."""
        job = self._job
        if job.budget is not None:
            return
        if not self.asked_ns:
            room = room_on(job.device)
            self._there = 0 if room is None else room.bytes + job.meter.live()
        self.asked_ns = time.monotonic_ns()
        if job.step.key == self._key:
            return  # as large as the one before
        self._key = job.step.key
        try:
            self._call = shapes_of((args, kwargs))
        except RepriseError:
            self._call = None  # of which there are no shapes

    def ran_out(self) -> None:
        """Notes that memory has run out, while what filled it is still there."""
        job = self._job
        self._held = max(job.step.peak, job.meter.peak())

    def give(self, model: nn.Module) -> None:
        """Says what would have fitted of this model, which its job does not keep alive."""
        job, call = self._job, self._call
        if job.budget is not None or call is None or several_ranks():
            return
        self._call = None
        try:
            job.say(self._answer(model, *call))
        except RepriseError as error:
            job.say(f"what would have fitted is not known: {error}")
        except RuntimeError as error:
            if not is_oom(error):
                raise
            job.say("what would have fitted is not known: there is no memory left to find out")

    def _answer(self, model: nn.Module, args: Any, kwargs: Any) -> str:
        graph = sketched(model, args, kwargs, self._job.step.live_begin).graph
        message = graph.message()
        usable = int(min(filter(None, (self._there, self._held)), default=0) * USABLE) >> 20 << 20
        budget = Budget(usable) if usable else Budget.least()
        plan, why, _ = asked(message, str(budget))
        needs = f"the step needs {format_bytes(graph.measured_peak_bytes)}"
        if plan is None:
            return f"{needs}, and no plan is known that would have fitted: {why}"
        takes = f"{format_bytes(plan.peak_bytes)}, {format_percent(plan.overhead, sign=True)}"
        estimate = f"{needs}, under a plan {takes} (an estimate, from shapes)"
        command = _command(usable or plan.budget_bytes, self._job.device.type == "cpu")
        return f"it would have fitted: {estimate}: {command}"


def _command(budget_bytes: int, on_cpu: bool) -> str:
    """Returns the command that starts the program under a budget; on a CPU so that malloc gives
    large blocks back, since there is no room for what it would keep."""
    line = list(sys.orig_argv)
    name = os.path.basename(line[0])
    found = shutil.which(name)
    if found is not None and os.path.realpath(found) == os.path.realpath(sys.executable):
        line[0] = name
    if on_cpu and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        line = ["env", "MALLOC_MMAP_THRESHOLD_=1000000", *line]
    return f"reprise run --budget {-(-budget_bytes >> 20)}MiB -- {shlex.join(line)}"
