# SPDX-License-Identifier: Apache-2.0
"""What follows from a step that is over: its figures, its report, and where the job goes.

    step_over(session, run, peak, forwards)      # a plain or planned step; not a captured one

The policy decides what the peak of a planned step says about its plan, and what the job does next;
this file carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from reprise import abi
from reprise.plan import Plan
from reprise.torch.ladder.rung import Rung
from reprise.torch.meter.step_times import Then
from reprise.torch.policy.events import PlannedStepEnded, StepEnded
from reprise.torch.policy.policy import Action, decide
from reprise.torch.policy.stage import Stage
from reprise.torch.session.check_schedule import Looks
from reprise.torch.session.parts import Parts
from reprise.torch.tape.executor import TapePlan
from reprise.torch.tape.tape_run import Run

__all__ = ["step_over"]


@dataclass(slots=True)
class _Outcome:
    """What is reported of a step."""

    peak: int
    flags: int = 0
    replayed: int = 0
    mismatches: int = 0
    plan: Plan | None = None  # that it ran under, if it is for an input as large
    took: Then | None = None  # takes its times; None: they are not counted


def step_over(session: Parts, run: Run | None, peak: int, forwards: int) -> None:
    """Counts and reports the step that has just ended, and does what follows from it. `run`: what
    the tape did; None: the step had no plan. `peak`: in bytes; `forwards`: of the model, in this
    step."""
    step = session.step
    looks, session.checks.looks = session.checks.looks, Looks.NOT
    outcome = _Outcome(peak)
    rung = session.planning.rung
    if run is not None and rung is not None and rung.planned is not None:
        _planned(session, run, rung, rung.planned, outcome, looks, forwards)
    elif not step.out_of_memory:
        outcome.took = session.measured.plain(step.key, peak)
        session.unplanned.ended(peak)
        session.waiting.unplanned()
    outcome.flags |= abi.STEP_WINDOW if step.tracing.on else 0
    outcome.flags |= abi.STEP_OOM if step.out_of_memory else 0
    step.out_of_memory = False
    if run is not None and rung is not None:
        session.planning.announce(rung)
    number = step.number

    def then(step_ns: int, work_ns: int) -> None:
        if outcome.took is not None:
            outcome.took(step_ns, work_ns)
        session.record.step(
            number,
            step_ns=step_ns,
            peak_bytes=outcome.peak,
            plan=outcome.plan,
            flags=outcome.flags,
            recomputed=outcome.replayed,
            mismatches=outcome.mismatches,
        )

    step.times.tell(then)
    _next(session, outcome, was_planned=run is not None)


def _planned(
    session: Parts,
    run: Run,
    rung: Rung,
    planned: TapePlan,
    outcome: _Outcome,
    looks: Looks,
    forwards: int,
) -> None:
    """Judges a planned step, and fills in its outcome. `looks`: how closely it was checked."""
    step, plan = session.step, planned.plan
    run.finish()
    counts = run.counts
    # What a larger input needs than the plan is for says nothing about the plan.
    covered = rung.uneven or rung.covers(step.key)
    session.waiting.planned()
    outcome.plan = plan if covered else None
    stats = planned.stats()
    outcome.replayed, outcome.mismatches = stats.recomputed, stats.mismatches
    outcome.flags = abi.STEP_PLANNED | (abi.STEP_KEPT_ALL if stats.kept_all else 0)
    looked = step.tracing.on or looks is not Looks.NOT
    quiet = not (looked or outcome.mismatches or counts.other_forwards)
    outcome.peak = peak = session.peaks.own(rung, outcome.peak)
    if not stats.kept_all or outcome.mismatches:
        session.ladder.after(rung, matched=not outcome.mismatches)
    if stats.kept_all:
        session.leaving.left(rung, counts, forwards)
    event = PlannedStepEnded(
        kept_all=stats.kept_all,
        left_plan=bool(outcome.mismatches),
        is_over=peak > plan.budget_bytes and not step.out_of_memory,
        is_covered=covered,
        explains=looks is Looks.EXPLAINS,
        has_no_room=rung.final,
        is_in_vain=rung.recaptured or rung.uneven or rung.varies,
    )
    for action in decide(session.state, event):
        if action is Action.COUNT:
            outcome.took = session.measured.planned(
                rung.number, peak, plan.budget_bytes, representative=quiet, covered=covered
            )
        elif action is Action.SAY_UNCOVERED:
            session.peaks.uncovered()
            session.leaving.larger(rung)
            outcome.flags, outcome.mismatches = abi.STEP_KEPT_ALL, 1
        elif action is Action.SAY_EXPLAINING:
            session.peaks.explaining(peak, plan)
        elif action is Action.PEAK_ABOVE:
            session.peaks.above(rung, peak)
        elif action is Action.CAPTURE_AGAIN:
            session.peaks.capture_again(rung, peak)
        elif action is Action.SAY_ABOVE:
            session.peaks.stays_above(rung, peak)
    session.measured.mismatched_steps += bool(outcome.mismatches)


def _next(session: Parts, outcome: _Outcome, *, was_planned: bool) -> None:
    """Moves the job on after a step."""
    event = StepEnded(
        plain_steps=session.measured.plain_steps,
        warmup=session.warmup,
        planned_steps=session.measured.planned_steps,
        was_planned=was_planned,
        was_measured=outcome.took is not None,
        is_hopeless=session.ladder.hopeless,
        is_joined=session.planning.together.ended(),
    )
    for action in decide(session.state, event):
        if action is Action.PLAN_TOGETHER:
            session.planning.together.join()
        elif action is Action.GO_TO_CAPTURE:
            session.stage = Stage.CAPTURE
        elif action is Action.GO_ON_WATCHED:
            session.stage = session.watched.stage
        elif action is Action.WITHDRAW:
            session.planning.drop(f"the step keeps changing ({session.leaving.why})")
        elif action is Action.SAY_STATUS:
            session.say_status()
        elif action is Action.LOOK_AT_REFUSAL:
            session.retry.ended(session.step.key, outcome.peak)
