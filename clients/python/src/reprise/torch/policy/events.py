# SPDX-License-Identifier: Apache-2.0
"""What happens to a job that is trained under plans, as the policy sees it: plain data.

An event carries the facts that the decision about it needs, and nothing that would have to be asked
for. It is a tuple: some are made in every step.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias


class Fact(Enum):
    """What happens that needs no other facts."""

    # Where plans come from, and go.
    GRAPH_SENT = "a captured step went to the planner, and its plan is awaited"
    BUDGET_REFUSED = "the planner says that nothing fits the budget"
    PLAN_APPLIED = "a plan was installed: the next steps run under it"
    OPS_MISJUDGED = "what was known of the captured ops was not so, and their plans were removed"
    BUDGET_SENT = "a budget was sent to a job that trains without a plan"
    PAGE_SERVED = "a job without a budget has a captured step for its page, or cannot have one"
    RANKS_MET = "the other ranks were met: from now on all decide together"
    # The steps before the first plan.
    START_BEGINS = "the first step is about to run"
    # They run under a plan made from shapes, with saved tensors in host memory, or plainly because
    # the job is not planned.
    START_SETTLED = "the first steps are not plain ones that may run in another way"
    # The end.
    REMOVED = "the program wants no plan any more, or another module is planned in this one's place"


class StepBegins(NamedTuple):
    """The first forward of a step is about to run."""

    again: bool = False  # the step has run out of memory before
    first_of_its_size: bool = False  # in which cuDNN tries its algorithms
    other_captures: bool = False  # another model of the process is being captured
    is_inert: bool = False  # there is nobody to plan a captured step


class StepEnded(NamedTuple):
    """A step is over."""

    plain_steps: int = 0  # measured so far
    warmup: int = 1  # of them, before one is captured
    planned_steps: int = 0  # so far, under plans made from shapes or under others, as this one was
    was_planned: bool = False
    is_sketched: bool = False  # its plan was made from shapes
    left_plan: bool = False  # its ops were others
    was_measured: bool = True
    may_capture: bool = True  # for the page of a job without a budget
    is_hopeless: bool = False  # the step keeps changing
    is_joined: bool = False  # other models with this budget are trained in the same steps


class PlannedStepBegins(NamedTuple):
    """A step is about to run under a plan."""

    every: int  # steps from one check to the next; 0: none is checked
    since: int = 0  # steps since the last check
    is_known: bool = False  # a step under this plan was checked
    is_traced: bool = False  # a step under this plan was recorded in detail
    is_suspect: bool = False  # values or buffers differed in the last check
    is_sketch: bool = False  # the plan is made from shapes alone
    shows_values: bool = True  # the executor can compare recomputed values with the original ones
    asks_for_gradients: bool = False
    can_compare: bool = True  # a second forward without a plan is possible


class Explained(NamedTuple):
    """A step has made every recomputed value twice, to find out why values differ."""

    rounds: int = 1  # such steps so far
    values_differ: bool = False  # from the original ones, still
    noisy_ops: bool = False  # ops were found that differ from themselves
    buffers_differ: bool = False  # they were written once more by what runs again
    writing_ops: bool = False  # ops were found that write them


class PlannedStepEnded(NamedTuple):
    """A planned step is over, and its peak is known."""

    kept_all: bool = False  # it discarded nothing, or no more after some op
    left_plan: bool = False  # its ops were others than captured
    is_over: bool = False  # its peak is above the budget
    of_largest: bool = False  # the data decides its ops, and its plan is the largest program's
    may_exceed: bool = False  # one of many more steps like it is likely to be
    is_covered: bool = True  # the plan is for an input as large as this one
    explains: bool = False  # it made every recomputed value twice
    has_no_room: bool = False  # no plan leaves more room than this one
    is_in_vain: bool = False  # to capture the step again for that: it was, or the data decides


class PlainStepEnded(NamedTuple):
    """A step without a plan is over, and its peak is known."""

    was_refused: bool = False  # the budget, for a step like those before
    tries: int = 0  # times that a plan was asked for again since
    is_new: bool = False  # its peak is another one than before the refusal
    new_in_a_row: int = 0  # such steps, with this one
    higher: int = 0  # steps that peak higher than the one refused, in a row or not, with this one
    is_relieved: bool = False  # its peak is lower, and another model of its steps has a plan


class ForwardRanOut(NamedTuple):
    """Memory ran out in a forward."""

    can_rerun: bool = False  # it was planned, and its state is remembered
    is_restorable: bool = False  # generators and buffers are remembered
    was_captured: bool = False


class RanOutElsewhere(NamedTuple):
    """Memory ran out beside forward and backward, and the program has given the step up."""

    was_planned: bool = False


class CompiledStepEnded(NamedTuple):
    """A step of a compiled job is over."""

    number: int
    graphs: int = 1  # joint graphs seen so far
    has_meter: bool = True
    # Its peak tells of its plan: nothing was compiled or compared in it, which takes memory that no
    # other step takes; or it was above the budget without what was compared.
    is_quiet: bool = True
    is_measured: bool = False  # it ran without a plan, to be measured
    has_plan: bool = True  # or, in a step that was measured, a graph that can have one


class StartStepEnded(NamedTuple):
    """A step has ended that began before the first plan."""

    on_host: bool = False  # its saved tensors were in host memory


# ---- Where plans come from, and go ---------------------------------------------------


class PlanIsLate(NamedTuple):
    """The plan that is awaited has not come in time."""

    why: str


class PlanningEnded(NamedTuple):
    """No plan will come, or none is trusted any more."""

    why: str


class PassedOver(NamedTuple):
    """A forward that trains ran in a way that cannot be planned."""

    why: str


class RanksLost(NamedTuple):
    """This rank decides alone from now on."""

    has_rungs: bool  # with a plan, or asked for by this rank


class Broke(NamedTuple):
    """There was an internal error."""

    why: str


# Something that the policy decides about.
Event: TypeAlias = (
    Fact
    | StepBegins
    | StepEnded
    | PlannedStepBegins
    | Explained
    | PlannedStepEnded
    | PlainStepEnded
    | ForwardRanOut
    | RanOutElsewhere
    | CompiledStepEnded
    | StartStepEnded
    | PlanIsLate
    | PlanningEnded
    | PassedOver
    | RanksLost
    | Broke
)
