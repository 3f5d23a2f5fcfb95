# SPDX-License-Identifier: Apache-2.0
"""What a job does about an event: a pure function of its state and the event.

    state, actions = decide(JobState(), StepEnded(plain_steps=3))

Nothing here imports torch or holds anything, and nothing else makes a state of an old one. The job
(training/job.py) keeps the state and carries the actions out, each by the one function that is
named for it. Tests are a table of cases (tests/python/pytorch/policy).
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from reprise.torch.policy import events
from reprise.torch.policy.events import Fact
from reprise.torch.policy.state import JobState, Stage

# Planned steps after the first check, after which prediction and measurement are said in a line.
SAID_AFTER = 3
# Steps in which every recomputed value is made twice before something is concluded from them: an op
# may give equal bits twice by chance.
ROUNDS = 2
# Steps with another peak before a refused budget is asked for again; twice as many before each next
# time, and so many times at most: each costs a captured step.
CHANGED_STEPS = 3
TRIES = 5
# Steps of a compiled job after which, without any joint graph, none is expected.
UNSEEN = 5


class Action(Enum):
    """What a job is to do."""

    __hash__ = object.__hash__  # that of Enum is written in Python, and every step looks some up

    # Capturing a step, if what is named agrees.
    CAPTURE_IF_WATCHED = "capture it if a job without a budget is still to be captured"
    CAPTURE_IF_RANKS_DO = "capture it if all ranks do, or if no plan of theirs is for its input"
    CAPTURE_IF_CHANGED = "capture it if it may differ from the one that was refused"
    CAPTURE_IF_NEW = "capture it if no plan is for its input"
    # Where a job goes.
    PLAN_TOGETHER = "plan it as one with the models that are trained in the same steps"
    WITHDRAW = "drop all plans and train without one"
    LOOK_AT_REFUSAL = "see whether the step has changed since its budget was refused"
    SAY_STATUS = "say what was predicted and measured"
    SAY_UNPLANNED = "say which steps without a plan peaked above the budget"
    NOTE_REFUSAL = "ask again once the steps have changed"
    FIND_RANKS = "meet the other ranks at the end of the first step"
    FORGET_STEPS = "forget captures and figures: the steps that come are others"
    END_START = "note that the job fits"
    # Checking a step.
    LOOK_TWICE = "make every recomputed value twice, to find out why values differ"
    LOOK_AGAIN = "do so in another step, before something is concluded from it"
    CHECK_VALUES = "compare recomputed values with the original ones"
    CHECK_GRADIENTS = "compare gradients with those of the same step without a plan"
    CHECK_IF_AFFORDABLE = "compare gradients if that is within the budget"
    TRACE = "record the step in detail"
    BLAME_VALUES = "withdraw the plan: recomputed values differ"
    BLAME_BUFFERS = "withdraw the plan: it writes buffers twice"
    EXCLUDE_NOISY = "never recompute ops that differ from themselves, and capture again"
    EXCLUDE_WRITING = "never recompute ops that write buffers, and capture again"
    # The peak of a planned step.
    COUNT = "count the step among those under the plan"
    UNCOVERED = "say that inputs without a plan peak above the budget, and ask for a foreseen one"
    SAY_EXPLAINING = "say that the step took more to explain differing values"
    PEAK_ABOVE = "have plans leave room for what it needs above the budget"
    PLAN_AHEAD = "have plans leave room for what a step is likely to need one day"
    CAPTURE_AGAIN = "capture the step again, because no plan leaves room for it"
    SAY_ABOVE = "say that steps peak above the budget, and nothing helps"
    # The peak of a step without a plan.
    REMEMBER_PEAK = "count the peak among those of steps as they are"
    REMEMBER_NEW = "count the peak among those of steps that have changed"
    FORGET_NEW = "forget the peaks of steps that have changed"
    CAPTURE_HIGHER = "capture a step that peaks higher than the one refused"
    FORGET_REFUSAL = "say that the step has changed, and forget what was refused"
    # Memory has run out.
    RUN_AGAIN_TIGHTER = "run the step again under a tighter plan"
    RUN_AGAIN = "run the forward again from the same state"
    RUN_ELSEWHERE = "run the forward again in a way that needs less memory"
    TOO_LARGE = "never capture an input of this size again"
    TIGHTEN = "ask for a tighter plan"
    SAY_TIGHTER = "say why the step cannot run again, and ask for a tighter plan"
    # A compiled job.
    STOP_UNSEEN = "train without a plan: nothing is compiled that could be planned"
    PLAN_WHOLE = "plan all graphs as one"
    JUDGE_PEAK = "compare its peak with the budget"


Actions = tuple[Action, ...]
Decision = tuple[JobState, Actions]


def decide(state: JobState, event: events.Event) -> Decision:
    """Returns where the job is after an event, and what it is to do about it, in order."""
    match event:
        case events.StepBegins():
            return state, _step_begins(state, event)
        case events.StepEnded():
            return _step_ended(state, event)
        case events.PlannedStepBegins():
            return state, _planned_step_begins(event)
        case events.Explained():
            return state, _explained(event)
        case events.PlannedStepEnded():
            return state, _planned_step_ended(event)
        case events.PlainStepEnded():
            return _plain_step_ended(state, event)
        case events.ForwardRanOut():
            return state, _forward_ran_out(state, event)
        case events.RanOutElsewhere():
            return state, (Action.SAY_TIGHTER,) if event.was_planned else ()
        case events.CompiledStepEnded():
            return state, _compiled_step_ended(state, event)
        case Fact.START_BEGINS:
            begun = replace(state, starting=state.has_budget)
            return begun, (Action.FIND_RANKS,) if state.has_budget else ()
        case events.StartStepEnded():
            return _start_step_ended(state, event)
        case _:
            return _moved(state, event)


def _moved(state: JobState, event: events.Event) -> Decision:
    """Decides where the job goes when something has become of its plans."""
    stage = state.stage
    match event:
        case Fact.GRAPH_SENT if stage is Stage.CAPTURE:
            return replace(state, stage=Stage.WAITING), ()
        case Fact.PLAN_APPLIED:
            says = () if stage is Stage.PLANNED else (Action.SAY_UNPLANNED,)
            return replace(state, stage=Stage.PLANNED, why=""), says
        case events.PlanIsLate(why):
            return replace(state, stage=Stage.PLANNED, why=why), ()
        case Fact.OPS_MISJUDGED:
            return replace(state, stage=Stage.CAPTURE), ()
        case events.PlanningEnded(why):
            return replace(state, stage=Stage.PLAIN, why=why), (Action.SAY_UNPLANNED,)
        case events.Broke(why):
            return replace(state, stage=Stage.PLAIN, why=why), ()
        case Fact.BUDGET_REFUSED:
            return state, (Action.NOTE_REFUSAL,)
        case Fact.REMOVED:
            return replace(state, stage=Stage.PLAIN), ()
        case Fact.BUDGET_SENT:
            begun = replace(state, stage=Stage.WARMUP, why="", has_budget=True)
            return begun, (Action.FORGET_STEPS,)
        case Fact.PAGE_SERVED if stage is Stage.CAPTURE:
            return replace(state, stage=Stage.PLAIN), ()
        case events.PassedOver(why) if stage in (Stage.WARMUP, Stage.CAPTURE):
            return replace(state, why=why), ()
        case Fact.START_SETTLED:
            return replace(state, starting=False), ()
        case Fact.RANKS_MET:
            return replace(state, several_ranks=True), ()
        case events.RanksLost(has_rungs):
            again = stage is Stage.WAITING and not has_rungs
            stage = Stage.CAPTURE if again else stage
            return replace(state, stage=stage, several_ranks=False), ()
    return state, ()


def _start_step_ended(state: JobState, event: events.StartStepEnded) -> Decision:
    """Decides how long the start lasts: until a step is captured, or the job gives it up."""
    if event.on_host and state.stage is Stage.WARMUP:
        state = replace(state, stage=Stage.CAPTURE)
    elif not event.on_host and state.stage in (Stage.WARMUP, Stage.CAPTURE):
        return state, ()
    return replace(state, starting=False), (Action.END_START,)


def _step_begins(state: JobState, event: events.StepBegins) -> Actions:
    """Decides who says whether the step is captured."""
    if event.again or event.first_of_its_size or event.other_captures or event.is_inert:
        return ()
    if not state.has_budget:
        return (Action.CAPTURE_IF_WATCHED,)
    if state.several_ranks:
        return (Action.CAPTURE_IF_RANKS_DO,)
    if state.stage is Stage.CAPTURE:
        return (Action.CAPTURE_IF_CHANGED,)
    return (Action.CAPTURE_IF_NEW,) if state.stage is Stage.PLANNED else ()


def _step_ended(state: JobState, event: events.StepEnded) -> Decision:
    """Decides where the job goes after a step."""
    if event.is_joined:
        return state, (Action.PLAN_TOGETHER,)
    if state.stage is Stage.WARMUP and event.plain_steps >= event.warmup:
        captures = state.has_budget or event.may_capture
        return replace(state, stage=Stage.CAPTURE if captures else Stage.PLAIN), ()
    if state.stage is Stage.PLANNED and event.is_hopeless:
        return state, (Action.WITHDRAW,)
    if event.is_sketched and state.stage is Stage.PLANNED:
        # The first step of all takes what is set up once, as a plain one does.
        if event.left_plan or event.planned_steps > event.warmup:
            return replace(state, stage=Stage.CAPTURE), ()
        return state, ()
    if event.was_planned:
        told = event.planned_steps == SAID_AFTER + 1
        return state, (Action.SAY_STATUS,) if told else ()
    return state, (Action.LOOK_AT_REFUSAL,) if event.was_measured else ()


def _planned_step_begins(event: events.PlannedStepBegins) -> Actions:
    """Decides how closely a planned step is looked at: the first one under a plan, and every n-th;
    after a difference, every step until it is explained. The second one is recorded in detail: in
    the record of the first, its check would be seen. Where only gradients can be compared, those of
    the first step are, whatever that takes."""
    if event.is_suspect:
        return (Action.LOOK_TWICE,)
    is_due = not event.is_known or event.since >= event.every
    if event.every and is_due:
        if not event.shows_values:
            return (Action.CHECK_IF_AFFORDABLE if event.is_known else Action.CHECK_GRADIENTS,)
        if event.asks_for_gradients and event.can_compare:
            return (Action.CHECK_VALUES, Action.CHECK_GRADIENTS)
        return (Action.CHECK_VALUES,)
    return () if event.is_traced or event.is_sketch else (Action.TRACE,)


def _explained(event: events.Explained) -> Actions:
    """Decides whether a difference is about the plan. A program whose own step differs from itself
    says nothing about it. As long as values differ, one step may not have shown why."""
    if event.values_differ and event.rounds < ROUNDS:
        return (Action.LOOK_AGAIN,)
    if event.buffers_differ:
        return (Action.EXCLUDE_WRITING if event.writing_ops else Action.BLAME_BUFFERS,)
    if event.values_differ:
        return (Action.EXCLUDE_NOISY if event.noisy_ops else Action.BLAME_VALUES,)
    return ()


def _planned_step_ended(event: events.PlannedStepEnded) -> Actions:
    """Decides what the peak of a planned step says about its plan: nothing, where no plan was
    tried because another model was in the way."""
    if event.kept_all and not event.left_plan:
        return ()
    above = event.is_over and (event.of_largest or not event.left_plan)
    if above and not event.is_covered:
        return (Action.UNCOVERED,)
    if event.is_over and event.explains:
        return (Action.COUNT, Action.SAY_EXPLAINING)
    if not above:
        return (Action.PLAN_AHEAD, Action.COUNT) if event.may_exceed else (Action.COUNT,)
    if not event.has_no_room:
        return (Action.COUNT, Action.PEAK_ABOVE)
    if event.of_largest:
        return (Action.COUNT,)  # a larger variant is looked for (ladder.py)
    return (Action.COUNT, Action.SAY_ABOVE if event.is_in_vain else Action.CAPTURE_AGAIN)


def _plain_step_ended(state: JobState, event: events.PlainStepEnded) -> Decision:
    """Decides whether a refused budget is asked for again: a few steps in a row have another peak,
    or, of a budget that is a share, a few peak higher than the step that was refused. A peak that
    another model's plan has lowered is no change."""
    if not event.was_refused or state.stage is not Stage.PLAIN:
        return state, (Action.REMEMBER_PEAK,)
    if state.several_ranks or event.tries >= TRIES:
        return state, ()
    enough = CHANGED_STEPS << event.tries
    if event.is_new and not event.is_relieved:
        if event.new_in_a_row < enough:
            return state, (Action.REMEMBER_NEW,)
        begun = replace(state, stage=Stage.WARMUP, why="")
        return begun, (Action.REMEMBER_NEW, Action.FORGET_REFUSAL, Action.FORGET_STEPS)
    actions = (Action.FORGET_NEW, Action.REMEMBER_PEAK)
    if event.higher < enough:
        return state, actions
    return replace(state, stage=Stage.CAPTURE, why=""), (*actions, Action.CAPTURE_HIGHER)


def _forward_ran_out(state: JobState, event: events.ForwardRanOut) -> Actions:
    """Decides whether a forward runs again, and what is asked for. Before the first plan there is
    none that could be too large."""
    if event.can_rerun:
        return (Action.RUN_AGAIN_TIGHTER,)
    if state.starting:
        return (Action.RUN_ELSEWHERE,) if event.is_restorable else ()
    captured = event.was_captured and state.stage is Stage.PLANNED
    less = Action.TOO_LARGE if captured else Action.TIGHTEN
    return (less, Action.RUN_AGAIN) if event.is_restorable else (less,)


def _compiled_step_ended(state: JobState, event: events.CompiledStepEnded) -> Actions:
    """Decides what a step of a compiled job says about its plan: nothing where its peak does
    not."""
    if state.why:
        return ()  # training continues without a plan
    if event.number == UNSEEN and not event.graphs:
        return (Action.STOP_UNSEEN,)
    if not (event.has_meter and event.is_quiet and event.has_plan):
        return ()
    return (Action.PLAN_WHOLE if event.is_measured else Action.JUDGE_PEAK,)
