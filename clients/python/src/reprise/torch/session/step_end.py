# SPDX-License-Identifier: Apache-2.0
"""What follows from a step that is over: its figures, its report, and where the job goes.

    step_end.over(run, peak)      # a plain or planned step
    step_end.observed(peak)       # one of which nothing follows

The policy decides what the peak of a planned step says about its plan, and what the job does next.
"""

from __future__ import annotations

from dataclasses import dataclass

from reprise.agent import abi
from reprise.plan import Plan
from reprise.plan.verdict import measured_part
from reprise.torch.job.job import EagerJob
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.step_times import Then
from reprise.torch.planning.page import Page
from reprise.torch.planning.planning import Planning
from reprise.torch.planning.together import Together
from reprise.torch.policy.events import PlannedStepEnded, StepEnded
from reprise.torch.policy.policy import Action
from reprise.torch.policy.state import Stage
from reprise.torch.session.check_schedule import CheckSchedule, Looks
from reprise.torch.session.leaving import Leaving
from reprise.torch.session.peaks import Peaks
from reprise.torch.session.waiting import Waiting
from reprise.torch.tape.executor import TapePlan
from reprise.torch.tape.tape_run import Run


@dataclass(slots=True, kw_only=True)
class _Ended:
    """A step that is over, and what is reported of it."""

    peak: int  # bytes
    flags: int = 0
    replayed: int = 0
    mismatches: int = 0
    plan: Plan | None = None  # that it ran under, if it is for an input as large
    took: Then | None = None  # takes its times; None: they are not counted


@dataclass(slots=True, kw_only=True)
class _Planned(_Ended):
    """A planned step that is over."""

    rung: Rung
    quiet: bool  # nothing went on in it that takes time in no other step


class StepEnd:
    """Counts and reports the steps of one job as they end, and does what follows from each."""

    def __init__(
        self,
        job: EagerJob,
        planning: Planning,
        *,
        together: Together,
        checks: CheckSchedule,
        waiting: Waiting,
        page: Page,
    ) -> None:
        self._job = job
        self._planning = planning
        self._together = together
        self._checks = checks
        self._waiting = waiting
        self._page = page
        self._peaks = peaks = Peaks(job, planning)
        self._leaving = leaving = Leaving(job)
        job.carry_out(
            {
                Action.COUNT: self._count,
                Action.UNCOVERED: self._uncovered,
                Action.SAY_EXPLAINING: lambda step: peaks.explaining(step.rung, step.peak),
                Action.PEAK_ABOVE: lambda step: peaks.above(
                    step.rung, step.peak, left=bool(step.mismatches)
                ),
                Action.PLAN_AHEAD: lambda step: peaks.ahead(step.rung),
                Action.CAPTURE_AGAIN: lambda step: peaks.capture_again(step.rung, step.peak),
                Action.SAY_ABOVE: lambda step: peaks.stays_above(step.rung, step.peak),
                Action.WITHDRAW: lambda _: planning.drop(
                    f"the step keeps changing ({leaving.why})"
                ),
                Action.SAY_STATUS: lambda _: self._say_status(),
            }
        )

    def over(self, run: Run | None, peak: int, *, waited: bool = False) -> None:
        """Counts and reports the step that has just ended, and does what follows from it. `run`:
        what the tape did; None: the step had no plan. `peak`: in bytes. `waited`: it has waited
        for memory in vain (late_frees.py)."""
        job = self._job
        looks, self._checks.looks = self._checks.looks, Looks.NOT
        ended = _Ended(peak=peak)
        rung = job.plans.rung
        if run is not None and rung is not None and rung.planned is not None:
            ended = self._planned(run, rung, rung.planned, peak, looks, waited=waited)
        else:
            self._plain(ended)
        if run is not None and rung is not None:
            self._planning.announce(rung)
        is_sketched = run is not None and rung is not None and rung.sketch
        self._report(ended, is_sketched)
        event = StepEnded(
            plain_steps=job.measured.plain_steps,
            warmup=job.options.warmup,
            planned_steps=job.measured.steps_under(sketched=is_sketched),
            was_planned=run is not None,
            is_sketched=is_sketched,
            left_plan=bool(ended.mismatches),
            was_measured=ended.took is not None,
            # Which looks at all modules: asked only where the answer decides.
            may_capture=job.stage is not Stage.WARMUP
            or job.budget is not None
            or self._page.may_capture,
            is_hopeless=job.plans.ladder.hopeless,
            is_joined=self._together.ended(),
        )
        job.happened(event, ended.peak)

    def observed(self, peak: int) -> None:
        """Counts and reports a step that has just ended, of which nothing follows."""
        ended = _Ended(peak=peak)
        self._plain(ended)
        self._report(ended, is_sketched=False)

    def _plain(self, ended: _Ended) -> None:
        """Counts a step without a plan."""
        job = self._job
        if not job.step.out_of_memory:
            ended.took = job.measured.plain(job.step.key, ended.peak)
            job.measured.without_plan(ended.peak)
            self._waiting.unplanned()

    def _report(self, ended: _Ended, is_sketched: bool) -> None:
        """Reports a step when its time is known. `is_sketched`: its plan was made from shapes."""
        job, step = self._job, self._job.step
        ended.flags |= abi.STEP_WINDOW if step.tracing.on else 0
        ended.flags |= abi.STEP_OOM if step.out_of_memory else 0
        step.out_of_memory = False
        number = step.number
        # What a step without a plan takes is known from those under one made from shapes.
        is_base = is_sketched and ended.flags == abi.STEP_PLANNED and not ended.mismatches

        def then(step_ns: int, work_ns: int) -> None:
            if ended.took is not None:
                ended.took(step_ns, work_ns)
            job.record.step(
                number,
                step_ns=step_ns,
                peak_bytes=ended.peak,
                plan=ended.plan,
                flags=ended.flags,
                recomputed=ended.replayed,
                mismatches=ended.mismatches,
                is_base=is_base,
            )

        step.times.tell(then)

    def _planned(
        self, run: Run, rung: Rung, planned: TapePlan, peak: int, looks: Looks, *, waited: bool
    ) -> _Planned:
        """Judges a planned step, and returns what is reported of it. `looks`: how closely it was
        checked; `waited`: for memory, in vain."""
        job, step, plan = self._job, self._job.step, planned.plan
        run.finish()
        # What a larger input needs than the plan is for says nothing about the plan.
        covered = rung.uneven or rung.covers(step.key)
        self._waiting.planned()
        stats = planned.stats()
        if planned.tape is not None:
            job.measured.in_python = planned.tape.in_python
        planned.ended()
        looked = step.tracing.on or looks is not Looks.NOT
        counts = run.counts
        ended = _Planned(
            peak=self._peaks.own(rung, peak),
            flags=abi.STEP_PLANNED | (abi.STEP_KEPT_ALL if stats.kept_all else 0),
            replayed=stats.recomputed,
            mismatches=stats.mismatches,
            plan=plan if covered else None,
            rung=rung,
            quiet=not (waited or looked or stats.mismatches or counts.other_forwards),
        )
        is_over = ended.peak > plan.budget_bytes and not step.out_of_memory
        if not stats.kept_all or ended.mismatches:
            job.plans.ladder.after(
                rung,
                matched=not ended.mismatches,
                above=is_over,
                # A plan that discards nothing compares nothing either.
                may_be_larger=counts.ran_on or not counts.dropped,
                where=counts.first_mismatch,
            )
        if stats.kept_all:
            self._leaving.left(rung, counts, step.forwards)
        ended.flags |= abi.STEP_WINDOW if waited else 0  # its time is not the plan's
        event = PlannedStepEnded(
            kept_all=stats.kept_all,
            left_plan=bool(ended.mismatches),
            is_over=is_over,
            of_largest=job.plans.ladder.is_largest(rung),
            may_exceed=self._peaks.may_exceed(rung),
            is_covered=covered,
            explains=looks is Looks.EXPLAINS,
            has_no_room=rung.final,
            is_in_vain=rung.recaptured or rung.uneven or rung.varies,
        )
        job.happened(event, ended)
        job.measured.mismatched_steps += bool(ended.mismatches)
        return ended

    def _say_status(self) -> None:
        """Says what was predicted and measured, in the verdict's own words, without the plan's
        sentence, which was said when the plan came."""
        if said := measured_part(self._job.record.verdict().sentence):
            self._job.say(said)

    def _count(self, step: _Planned) -> None:
        step.took = self._job.measured.planned(
            step.rung.number,
            step.peak,
            representative=step.quiet,
            covered=step.plan is not None,
        )

    def _uncovered(self, step: _Planned) -> None:
        self._job.say("steps with an input larger than any that has a plan peak above the budget")
        self._planning.came(self._job.step.key)
        self._leaving.larger(step.rung)
        step.flags, step.mismatches = abi.STEP_KEPT_ALL, 1
