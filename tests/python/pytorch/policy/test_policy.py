# SPDX-License-Identifier: Apache-2.0
"""What a job does about an event: a table of cases, without torch."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from reprise.torch.policy.events import (
    Broke,
    CompiledStepEnded,
    Event,
    Explained,
    Fact,
    ForwardRanOut,
    PassedOver,
    PlainStepEnded,
    PlanIsLate,
    PlannedStepBegins,
    PlannedStepEnded,
    PlanningEnded,
    RanksLost,
    RanOutElsewhere,
    StartStepEnded,
    StepBegins,
    StepEnded,
)
from reprise.torch.policy.policy import Action, decide
from reprise.torch.policy.state import JobState, Stage

# Facts, and the kinds of those events that carry facts of their own.
EVENTS = [
    *Fact,
    *(kind for kind in get_args(Event) if kind is not Fact),
]
WARMUP, CAPTURE, WAITING = JobState(Stage.WARMUP), JobState(Stage.CAPTURE), JobState(Stage.WAITING)
PLANNED, PLAIN = JobState(Stage.PLANNED), JobState(Stage.PLAIN)
STARTING = JobState(Stage.WARMUP, starting=True)
RANKS, PLAIN_RANKS = (
    JobState(Stage.CAPTURE, several_ranks=True),
    JobState(Stage.PLAIN, several_ranks=True),
)
WATCHED = JobState(Stage.WARMUP, has_budget=False)

CASES: dict[str, tuple[JobState, Event, str]] = {
    # ---- Is a step captured? ----
    "while the job warms up, nothing is captured": (WARMUP, StepBegins(), ""),
    "while a plan is awaited, nothing is captured": (WAITING, StepBegins(), ""),
    "without a plan, nothing is captured": (PLAIN, StepBegins(), ""),
    "after the warm-up": (CAPTURE, StepBegins(), "CAPTURE_IF_CHANGED"),
    "an input that no plan is for": (PLANNED, StepBegins(), "CAPTURE_IF_NEW"),
    "a job without a budget": (WATCHED, StepBegins(), "CAPTURE_IF_WATCHED"),
    "several ranks": (RANKS, StepBegins(), "CAPTURE_IF_RANKS_DO"),
    "a step that ran out of memory": (CAPTURE, StepBegins(again=True), ""),
    "the first step of a size": (CAPTURE, StepBegins(first_of_its_size=True), ""),
    "one capture at a time": (CAPTURE, StepBegins(other_captures=True), ""),
    "nobody to plan it": (RANKS, StepBegins(is_inert=True), ""),
    # ---- Where the job goes after a step ----
    "not warm yet": (WARMUP, StepEnded(plain_steps=1, warmup=2), "LOOK_AT_REFUSAL"),
    "warm": (WARMUP, StepEnded(plain_steps=2, warmup=2), "-> CAPTURE"),
    "warm, without a budget": (WATCHED, StepEnded(plain_steps=1), "-> CAPTURE"),
    "warm, without a budget, and no page is wanted": (
        WATCHED,
        StepEnded(plain_steps=1, may_capture=False),
        "-> PLAIN",
    ),
    "a step that keeps changing": (PLANNED, StepEnded(is_hopeless=True), "WITHDRAW"),
    "another model with this budget is trained in the same steps": (
        WARMUP,
        StepEnded(plain_steps=2, warmup=2, is_joined=True),
        "PLAN_TOGETHER",
    ),
    "a status too early": (PLANNED, StepEnded(planned_steps=3, was_planned=True), ""),
    "the status": (PLANNED, StepEnded(planned_steps=4, was_planned=True), "SAY_STATUS"),
    "the status, once": (PLANNED, StepEnded(planned_steps=5, was_planned=True), ""),
    "under a plan from shapes, not measured yet": (
        PLANNED,
        StepEnded(planned_steps=2, warmup=2, was_planned=True, is_sketched=True),
        "",
    ),
    "under a plan from shapes, measured": (
        PLANNED,
        StepEnded(planned_steps=3, warmup=2, was_planned=True, is_sketched=True),
        "-> CAPTURE",
    ),
    "a step that is not as its shapes foretold": (
        PLANNED,
        StepEnded(planned_steps=1, warmup=2, was_planned=True, is_sketched=True, left_plan=True),
        "-> CAPTURE",
    ),
    "a step that ran out of memory is no measurement": (PLAIN, StepEnded(was_measured=False), ""),
    # ---- How closely a planned step is looked at ----
    "the first step under a plan": (PLANNED, PlannedStepBegins(every=50), "CHECK_VALUES"),
    "the second one": (PLANNED, PlannedStepBegins(50, 1, is_known=True), "TRACE"),
    "the third one": (PLANNED, PlannedStepBegins(50, 2, is_known=True, is_traced=True), ""),
    "the n-th one": (
        PLANNED,
        PlannedStepBegins(50, 50, is_known=True, is_traced=True),
        "CHECK_VALUES",
    ),
    "gradients": (
        PLANNED,
        PlannedStepBegins(50, asks_for_gradients=True),
        "CHECK_VALUES CHECK_GRADIENTS",
    ),
    "gradients, where a second forward shows or does not fit": (
        PLANNED,
        PlannedStepBegins(50, asks_for_gradients=True, can_compare=False),
        "CHECK_VALUES",
    ),
    "no checks": (PLANNED, PlannedStepBegins(every=0), "TRACE"),
    "the first step under a plan from shapes": (
        PLANNED,
        PlannedStepBegins(50, is_sketch=True),
        "CHECK_VALUES",
    ),
    "a plan from shapes is replaced soon": (
        PLANNED,
        PlannedStepBegins(50, 1, is_known=True, is_sketch=True),
        "",
    ),
    "only gradients show: the first step": (
        PLANNED,
        PlannedStepBegins(50, 1, is_traced=True, shows_values=False),
        "CHECK_GRADIENTS",
    ),
    "only gradients show: one in between": (
        PLANNED,
        PlannedStepBegins(50, 7, is_known=True, is_traced=True, shows_values=False),
        "",
    ),
    "only gradients show: the n-th one": (
        PLANNED,
        PlannedStepBegins(50, 50, is_known=True, is_traced=True, shows_values=False),
        "CHECK_IF_AFFORDABLE",
    ),
    "only gradients show: no checks": (
        PLANNED,
        PlannedStepBegins(every=0, is_traced=True, shows_values=False),
        "",
    ),
    "after a difference, whatever is due": (
        PLANNED,
        PlannedStepBegins(50, 1, is_known=True, is_suspect=True),
        "LOOK_TWICE",
    ),
    # ---- What a difference is about ----
    "one look may show equal bits by chance": (
        PLANNED,
        Explained(rounds=1, values_differ=True, noisy_ops=True, buffers_differ=True),
        "LOOK_AGAIN",
    ),
    "nothing differs any more": (PLANNED, Explained(), ""),
    "ops that differ from themselves": (
        PLANNED,
        Explained(rounds=2, values_differ=True, noisy_ops=True),
        "EXCLUDE_NOISY",
    ),
    "values that only the plan can have changed": (
        PLANNED,
        Explained(rounds=2, values_differ=True),
        "BLAME_VALUES",
    ),
    "buffers that an op writes each time it runs": (
        PLANNED,
        Explained(buffers_differ=True, writing_ops=True),
        "EXCLUDE_WRITING",
    ),
    "buffers that nobody knows who writes": (
        PLANNED,
        Explained(rounds=2, values_differ=True, noisy_ops=True, buffers_differ=True),
        "BLAME_BUFFERS",
    ),
    # ---- The peak of a planned step ----
    "within the budget": (PLANNED, PlannedStepEnded(), "COUNT"),
    "above the budget": (PLANNED, PlannedStepEnded(is_over=True), "COUNT PEAK_ABOVE"),
    "within it, and one of many more will not be": (
        PLANNED,
        PlannedStepEnded(may_exceed=True),
        "PLAN_AHEAD COUNT",
    ),
    "above, and no plan leaves room for it": (
        PLANNED,
        PlannedStepEnded(is_over=True, has_no_room=True),
        "COUNT CAPTURE_AGAIN",
    ),
    "above, as when it was captured again for that": (
        PLANNED,
        PlannedStepEnded(is_over=True, has_no_room=True, is_in_vain=True),
        "COUNT SAY_ABOVE",
    ),
    "above, with an input no plan is for": (
        PLANNED,
        PlannedStepEnded(is_over=True, is_covered=False),
        "UNCOVERED",
    ),
    "above, because every value is made twice": (
        PLANNED,
        PlannedStepEnded(is_over=True, explains=True),
        "COUNT SAY_EXPLAINING",
    ),
    "above, in a step that left its plan": (
        PLANNED,
        PlannedStepEnded(kept_all=True, left_plan=True, is_over=True, is_covered=False),
        "COUNT",
    ),
    "above, in a step that left the plan of the largest variant": (
        PLANNED,
        PlannedStepEnded(kept_all=True, left_plan=True, is_over=True, of_largest=True),
        "COUNT PEAK_ABOVE",
    ),
    "above, and that plan leaves no more room": (
        PLANNED,
        PlannedStepEnded(left_plan=True, is_over=True, of_largest=True, has_no_room=True),
        "COUNT",
    ),
    "no plan was tried": (PLANNED, PlannedStepEnded(kept_all=True, is_over=True), ""),
    # ---- A refused budget ----
    "before a refusal": (WARMUP, PlainStepEnded(is_new=True, new_in_a_row=9), "REMEMBER_PEAK"),
    "refused, and a plan is asked for already": (
        CAPTURE,
        PlainStepEnded(was_refused=True, is_new=True, new_in_a_row=9),
        "REMEMBER_PEAK",
    ),
    "a second step with another peak": (
        PLAIN,
        PlainStepEnded(was_refused=True, is_new=True, new_in_a_row=2),
        "REMEMBER_NEW",
    ),
    "a third one in a row": (
        PLAIN,
        PlainStepEnded(was_refused=True, is_new=True, new_in_a_row=3),
        "-> WARMUP REMEMBER_NEW FORGET_REFUSAL FORGET_STEPS",
    ),
    "the next time it takes twice as many": (
        PLAIN,
        PlainStepEnded(was_refused=True, tries=1, is_new=True, new_in_a_row=5),
        "REMEMBER_NEW",
    ),
    "as before": (PLAIN, PlainStepEnded(was_refused=True), "FORGET_NEW REMEMBER_PEAK"),
    "as before, and several have peaked higher than what was refused": (
        PLAIN,
        PlainStepEnded(was_refused=True, higher=3),
        "-> CAPTURE FORGET_NEW REMEMBER_PEAK CAPTURE_HIGHER",
    ),
    "five times are enough": (
        PLAIN,
        PlainStepEnded(was_refused=True, tries=5, is_new=True, new_in_a_row=999),
        "",
    ),
    "a peak that another model's plan has lowered": (
        PLAIN,
        PlainStepEnded(was_refused=True, is_new=True, new_in_a_row=3, is_relieved=True),
        "FORGET_NEW REMEMBER_PEAK",
    ),
    "no rank decides alone": (
        PLAIN_RANKS,
        PlainStepEnded(was_refused=True, is_new=True, new_in_a_row=3),
        "",
    ),
    # ---- Memory runs out ----
    "in a planned forward": (PLANNED, ForwardRanOut(can_rerun=True), "RUN_AGAIN_TIGHTER"),
    "in one that cannot run again": (PLANNED, ForwardRanOut(), "TIGHTEN"),
    "in one whose state is remembered": (
        PLANNED,
        ForwardRanOut(is_restorable=True),
        "TIGHTEN RUN_AGAIN",
    ),
    "in a captured forward of a new size": (
        PLANNED,
        ForwardRanOut(is_restorable=True, was_captured=True),
        "TOO_LARGE RUN_AGAIN",
    ),
    "in the first captured forward": (CAPTURE, ForwardRanOut(was_captured=True), "TIGHTEN"),
    "in a plain first forward": (STARTING, ForwardRanOut(is_restorable=True), "RUN_ELSEWHERE"),
    "in one with several ranks": (STARTING, ForwardRanOut(), ""),
    "in the loss, before the first plan": (STARTING, RanOutElsewhere(), ""),
    "in the loss, under a plan": (PLANNED, RanOutElsewhere(was_planned=True), "SAY_TIGHTER"),
    "in the loss, without a plan": (PLAIN, RanOutElsewhere(), ""),
    # ---- What becomes of its plans ----
    "a graph went to the planner": (CAPTURE, Fact.GRAPH_SENT, "-> WAITING"),
    "a larger input's graph went there": (PLANNED, Fact.GRAPH_SENT, ""),
    "the first plan": (WAITING, Fact.PLAN_APPLIED, "-> PLANNED SAY_UNPLANNED"),
    "another plan": (PLANNED, Fact.PLAN_APPLIED, ""),
    "a plan that is late": (WAITING, PlanIsLate("slow"), "-> PLANNED"),
    "nothing fits": (WAITING, Fact.BUDGET_REFUSED, "NOTE_REFUSAL"),
    "no plan will come": (WAITING, PlanningEnded("none fits"), "-> PLAIN SAY_UNPLANNED"),
    "ops were not as they had been taken for": (PLANNED, Fact.OPS_MISJUDGED, "-> CAPTURE"),
    "a budget from the page": (PLAIN, Fact.BUDGET_SENT, "-> WARMUP FORGET_STEPS"),
    "the page has its step": (CAPTURE, Fact.PAGE_SERVED, "-> PLAIN"),
    "the page had it before": (PLANNED, Fact.PAGE_SERVED, ""),
    "a CUDA graph is captured of the model": (WARMUP, PassedOver("a graph"), ""),
    "the other ranks are there": (WARMUP, Fact.RANKS_MET, ""),
    "they are lost, with plans": (WAITING, RanksLost(has_rungs=True), ""),
    "they are lost before a plan": (WAITING, RanksLost(has_rungs=False), "-> CAPTURE"),
    # ---- The start ----
    "the first step": (WARMUP, Fact.START_BEGINS, "FIND_RANKS"),
    "the first step, without a budget": (WATCHED, Fact.START_BEGINS, ""),
    "it is settled how the first steps run": (STARTING, Fact.START_SETTLED, ""),
    "a plain step of the start": (STARTING, StartStepEnded(), ""),
    "a step on the host": (WARMUP, StartStepEnded(on_host=True), "-> CAPTURE END_START"),
    "a plan has come": (PLANNED, StartStepEnded(), "END_START"),
    # ---- The end ----
    "an internal error": (PLANNED, Broke("KeyError"), "-> PLAIN"),
    "the program wants no plan": (PLANNED, Fact.REMOVED, "-> PLAIN"),
    # ---- A compiled job ----
    "compiled: a peak": (PLANNED, CompiledStepEnded(3), "JUDGE_PEAK"),
    "compiled: a peak while it compiles": (PLANNED, CompiledStepEnded(1, is_quiet=False), ""),
    "compiled: no plan": (PLANNED, CompiledStepEnded(3, has_plan=False), ""),
    "compiled: nobody measures": (PLANNED, CompiledStepEnded(3, has_meter=False), ""),
    "compiled: what it needs is known": (
        WARMUP,
        CompiledStepEnded(2, is_measured=True),
        "PLAN_WHOLE",
    ),
    "compiled: it compiled the code without a plan": (
        WARMUP,
        CompiledStepEnded(1, is_measured=True, is_quiet=False),
        "",
    ),
    "compiled: it called no graph": (
        WARMUP,
        CompiledStepEnded(2, is_measured=True, has_plan=False),
        "",
    ),
    "compiled: no graph yet": (PLANNED, CompiledStepEnded(4, graphs=0, has_plan=False), ""),
    "compiled: no graph will come": (
        PLANNED,
        CompiledStepEnded(5, graphs=0, has_meter=False, has_plan=False),
        "STOP_UNSEEN",
    ),
    "compiled: it has stopped": (
        JobState(Stage.PLAIN, why="a gradient differs"),
        CompiledStepEnded(5, graphs=0),
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_job_does_about_an_event(case: str) -> None:
    state, event, expected = CASES[case]
    after, actions = decide(state, event)
    moved = [] if after.stage is state.stage else ["->", after.stage.name]
    assert [*moved, *(action.name for action in actions)] == expected.split()


def test_every_action_event_and_stage_follows_from_a_case() -> None:
    named = {name for _, _, expected in CASES.values() for name in expected.split()} - {"->"}
    assert named == {action.name for action in Action} | {stage.name for stage in Stage}
    events_of_cases = [event for _, event, _ in CASES.values()]
    assert {e if isinstance(e, Fact) else type(e) for e in events_of_cases} == set(EVENTS)


def drawn(draw: random.Random) -> Event:
    """Returns any event, with any facts."""
    values: dict[str, Any] = {"bool": bool(draw.randrange(2)), "int": draw.randrange(6)}
    kind: Any = draw.choice(EVENTS)
    if isinstance(kind, Fact):
        return kind
    facts = kind.__annotations__.items()
    made: Event = kind(
        **{f: values.get(t.__forward_arg__, draw.choice(("", "x"))) for f, t in facts}
    )
    return made


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_a_job_is_somewhere_for_a_reason_and_can_always_end(seed: int) -> None:
    draw = random.Random(seed)
    state = JobState(has_budget=bool(seed % 2))
    for _ in range(50):
        event = drawn(draw)
        before = state
        state, actions = decide(before, event)

        assert decide(before, event) == (state, actions)
        assert len(set(actions)) == len(actions)
        # A job trains plainly because somebody said why, or because nothing was asked for.
        silent = event in (Fact.REMOVED, Fact.PAGE_SERVED) or isinstance(event, StepEnded)
        if state.stage is Stage.PLAIN and before.stage is not Stage.PLAIN:
            assert silent or state.why == event.why  # type: ignore[attr-defined]
        # No reason is left over from a stage that a plan or a new beginning has ended.
        if event in (Fact.PLAN_APPLIED, Fact.BUDGET_SENT):
            assert state.why == ""
        for end in (PlanningEnded("enough"), Broke("enough")):
            ended, _ = decide(state, end)
            assert (ended.stage, ended.why) == (Stage.PLAIN, "enough")
        assert decide(state, Fact.REMOVED)[0].stage is Stage.PLAIN


def test_the_policy_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\nfrom reprise.torch.policy import events, policy"
    )
    source = Path(__file__).parents[4] / "clients/python/src"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True)
