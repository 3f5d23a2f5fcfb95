# SPDX-License-Identifier: Apache-2.0
"""Forwards that the program captures into a CUDA graph.

    graphed = Graphed(job, beside, progress)
    out = graphed.forward(call, args, kwargs)   # while a graph is captured
    graphed.over()                              # outside of it: says what was captured

A graph that is captured under a plan recomputes in each replay what the plan discards, and its pool
has the size that the plan allows. While it is captured nothing may wait for the device or set a
generator, and what a replay computes is not seen: so the plan is one that draws no random number
again, and no check is made. The plans of the steps before were checked as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reprise.agent import abi
from reprise.base.units import format_bytes
from reprise.torch.capture.captured import BACKWARD, FORWARD
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung, key_of
from reprise.torch.meter.state import blocked, captures_graph
from reprise.torch.planning.beside import Beside
from reprise.torch.policy.events import PassedOver
from reprise.torch.recovery.progress import Progress
from reprise.torch.tape.tape_run import Run


class Graphed:
    """What of one model is captured into CUDA graphs."""

    def __init__(self, job: EagerJob, beside: Beside, progress: Progress) -> None:
        self._job = job
        self._beside = beside
        self._progress = progress
        self._open = False  # something was captured since `over` was called
        self._rung: Rung | None = None  # whose plan it was captured under
        self._run: Run | None = None
        self._live = 0  # bytes, when the capture began

    def forward(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a training forward that is captured, under a plan if there is one for it."""
        if not self._open:
            self._begin(args, kwargs)
        rung, run = self._rung, self._run
        if rung is None or rung.tape is None or run is None or blocked():
            return call(*args, **kwargs)
        if run.spent:
            run.counts.other_forwards = True
            self._run = rung.tape.begin_more(run, *self._progress.position())
        step = self._job.step
        step.in_forward = True
        self._progress.enter(FORWARD)
        try:
            with rung.tape.region():
                return call(*args, **kwargs)
        finally:
            step.in_forward = False
            self._progress.enter(BACKWARD)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        job = self._job
        self._open = True
        if job.budget is None:
            return
        found = self._plan(args, kwargs)
        if isinstance(found, str):
            why = f"a CUDA graph is captured of the model, and {found}"
            job.say(f"not planned: {why}")
            job.happened(PassedOver(why))
            return
        assert found.tape is not None
        job.step.number += 1
        job.agent.step(job.step.number)
        self._live = job.meter.live()
        job.meter.reset_peak()
        self._rung = job.plans.rung = found
        job.measured.shown = found.key
        self._run = found.tape.begin(None, *self._progress.position())

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rung | str:
        """Returns the rung whose plan this is captured under; or why it is captured without."""
        job = self._job
        if job.state.several_ranks:
            return "ranks that train together replay no plan"
        if why := blocked():
            return why
        rung = job.plans.ladder.pick(key_of(args, kwargs, job.device.type, job.model))
        if rung is None:
            return "there is no plan yet: a step that runs before it is captured brings one"
        return self._beside.in_graph(rung)

    def over(self) -> None:
        """Says what was captured, if anything was since the last call."""
        job = self._job
        if not self._open or captures_graph(job.device):
            return
        rung, run = self._rung, self._run
        self._open, self._rung, self._run = False, None, None
        if rung is None or rung.plan is None or run is None:
            return
        run.finish()
        counts, plan, peak = run.counts, rung.plan, job.meter.peak()
        if job.budget is not None and job.budget.is_share:
            after = job.meter.live() - rung.live_end - rung.held_bytes
            peak -= max(0, rung.beside(self._live, 0), after)
        flags = abi.STEP_PLANNED | abi.STEP_WINDOW  # nothing is timed
        job.measured.planned(rung.number, peak, representative=False, covered=True)
        job.measured.mismatched_steps += bool(counts.mismatches)
        job.record.step(
            job.step.number,
            step_ns=0,
            peak_bytes=peak,
            plan=plan,
            flags=flags | (abi.STEP_KEPT_ALL if counts.mismatches else 0),
            recomputed=counts.replayed,
            mismatches=counts.mismatches,
        )
        limit = f"peak {format_bytes(peak)} of {format_bytes(plan.budget_bytes)}"
        if counts.mismatches:
            job.say(f"captured into a CUDA graph, not as planned: {counts.first_mismatch}; {limit}")
            return
        job.say(
            f"captured into a CUDA graph under the plan: {limit}; each replay recomputes "
            f"{counts.replayed} calls. What replays compute is not checked"
        )
