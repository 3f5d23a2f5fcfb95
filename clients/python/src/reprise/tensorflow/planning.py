# SPDX-License-Identifier: Apache-2.0
"""Plans a step of a graph, measures the plan in a copy, and rewrites the graph.

    request = Request.of("gradients", budget="0.5x")
    made = rewrite_step([loss], gradients, request)      # Applied; or Answer: why there is no plan
    made.sentence

What is promised was measured before: the step runs in a copy of the graph (rehearsal.py), first in
base order, then under the plan. What the first run took beyond the step graph is held back in every
budget; a plan that took more than the budget is replaced by one with the difference held back, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

from reprise.agent.received import InfeasibleBudget
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.base.units import format_bytes, format_percent
from reprise.plan import Evaluation, Plan, base_schedule, evaluate
from reprise.plan import plan as ask
from reprise.plan.result import Known
from reprise.plan.wish import Answer, Wish
from reprise.tensorflow.captured import CapturedStep, capture, ordered_ops
from reprise.tensorflow.grappler import keep_away
from reprise.tensorflow.kinds import FORWARDING_SECOND, VIEWS, has_ops_inside
from reprise.tensorflow.modes import checkpoints_of, schedule_of
from reprise.tensorflow.rehearsal import Rehearsal, in_order
from reprise.tensorflow.rewrite import Rewriter
from reprise.tensorflow.trace import op_records

EXECUTOR = "tf-graph"
MOST_ROUNDS = 3
# Of the peak, where checkpoints are to lower it: a share that shows that they do not.
MOST_LEFT = 0.75
# A difference of peaks that figures with one decimal show.
VISIBLE = 0.0005
OPEN = "not predicted, because the graph leaves sizes open (batch= gives them)."
# Threads run what is inside of loops in an order of their own: the largest of some runs counts.
COARSE_RUNS = 3
# A graph that is not the step: its loops, conditionals and functions are one op each, or it takes
# other bytes than its ops show. The server proves nothing of the step by it, and says so.
COARSE = "tf-coarse"


@dataclass(frozen=True, slots=True)
class Request:
    """What a program asks for: a budget, or checkpoints."""

    wish: Wish | None
    checkpoints: str | Sequence[Any] | None
    batch: int | None
    name: str

    @classmethod
    def of(
        cls,
        call: str,
        budget: str | int | None,
        checkpoints: str | Sequence[Any] | None,
        batch: int | None,
        name: str | None,
        *wish: Any,
    ) -> Request:
        """Raises RepriseError for what no plan can be asked with, before anything is added to a
        graph. `wish` is the rest of what Wish.of takes."""
        if (budget is None) == (checkpoints is None):
            raise RepriseError(f"{call}: give either budget= or checkpoints=")
        if checkpoints is not None and not isinstance(checkpoints, (str, Sequence)):
            raise RepriseError(
                f"checkpoints: must be a mode or a list of tensors, got {checkpoints!r}"[:160]
            )
        for tensor in () if checkpoints is None or isinstance(checkpoints, str) else checkpoints:
            if not hasattr(tensor, "name") or not hasattr(tensor, "op"):
                raise RepriseError(
                    f"checkpoints: must be tensors of the graph, got {tensor!r}"[:160]
                )
        is_number = isinstance(batch, SupportsIndex) and not isinstance(batch, bool)
        if batch is not None and not (is_number and index(batch) > 0):
            raise RepriseError(f"batch: must be an integer above 0, got {batch!r}"[:160])
        asked = Wish.of("1x" if budget is None else budget, *wish)
        wished = asked if checkpoints is None else None
        return cls(wished, checkpoints, batch, name or "TensorFlow step")


@dataclass(slots=True)
class Applied:
    """What was done to a graph. Bytes include variables and inputs."""

    step: CapturedStep
    # None for checkpoints, whose schedule is not the planner's.
    plan: Plan | None
    # The schedule and the step without a plan, as the step graph shows them.
    predicted: Evaluation
    base: Evaluation
    # The peak of the schedule, as it was rehearsed: TensorFlow also overwrites inputs that end. 0
    # for checkpoints in a graph that leaves sizes open, where no figure is a prediction.
    peak_bytes: int
    rewritten: Rewriter
    # The graph before it was rewritten, as a GraphDef; the tensors and the ops with effects that
    # the step is for; the size of open dimensions.
    written: Any
    results: Sequence[Any]
    effects: Sequence[Any]
    batch: int | None
    # The newest measured peak, and the newest comparison with the step as it was written.
    measured_bytes: int = 0
    bits: bool | None = None
    compared: str = ""

    @property
    def copies(self) -> int:
        """How many ops run again."""
        return self.rewritten.copies

    @property
    def others(self) -> int:
        """How many other losses of the graph have plans of their own."""
        return len(_parts(self.rewritten.last.graph)) - 1 if self.rewritten.last else 0

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if not self.peak_bytes:
            return f"Checkpoints: {self.copies} ops run again; peak and time are {OPEN}"
        if self.plan is not None and not self.others:
            return self.plan.sentence
        kind = "Checkpoints" if self.plan is None else "Plan"
        whose = " of this loss alone, which shares its memory with others" if self.others else ""
        more = self.predicted.time_ns / max(1, self.base.time_ns) - 1
        return (
            f"{kind}{whose}: peak {format_bytes(self.peak_bytes)} (was "
            f"{format_bytes(self.base.peak_bytes)}), {self.copies} ops run again, "
            f"{format_percent(more, sign=True)} time predicted."
        )

    @property
    def measured(self) -> str:
        """Predicted peak, measured peak and budget in one sentence."""
        measured = format_bytes(self.measured_bytes or self.peak_bytes)
        budget = format_bytes(self.plan.budget_bytes) if self.plan else ""
        if not self.measured_bytes:
            return f"Rehearsed with a peak of {measured}." if self.peak_bytes else ""
        if not self.peak_bytes:
            return f"Measured {measured} above variables and inputs; {OPEN}"
        off = format_percent(self.measured_bytes / self.peak_bytes - 1, sign=True)
        text = f"Predicted {format_bytes(self.peak_bytes)}, measured {measured} ({off})"
        if self.others:
            text += ", of which the prediction is that of one loss alone"
        if self.plan is None:
            return text + "."
        kept = "kept" if self.measured_bytes <= self.plan.budget_bytes else "not kept"
        return f"{text}: the budget of {budget} was {kept}."

    def known(self, sentence: str = "") -> Known:
        """Returns what is known of it, with this sentence, or all of them."""
        whole = (self.sentence.rstrip(".") + ".", self.measured, self.compared)
        return Known(
            sentence or " ".join(filter(None, whole)),
            budget_bytes=self.plan.budget_bytes if self.plan else 0,
            predicted_bytes=self.peak_bytes,
            measured_bytes=self.measured_bytes or self.peak_bytes,
            measured_by="a rehearsal" if self.measured_bytes or self.peak_bytes else "",
            bits=self.bits,
            overhead=self.plan.overhead if self.plan else None,
            plan=self.plan,
        )


def _parts(graph: Any) -> list[Applied]:
    """Returns what was done to a graph, the newest last."""
    if not hasattr(graph, "_reprise_applied"):
        graph._reprise_applied = []
    return graph._reprise_applied  # type: ignore[no-any-return]


def applied_to(graph: Any) -> Applied | None:
    """Returns what the newest call did to a graph; None if there was none."""
    return next(reversed(_parts(graph)), None)


def take_back(ys: Sequence[Any]) -> None:
    """Undoes earlier plans of a graph whose copies or gradients `ys` are computed from, as a
    penalty on gradients is. The gradient of a copy is another sum than that of the op as it was
    written; and what `ys` are computed from is a part of their own step."""
    for made in list(_parts(ys[0].graph)) if ys else []:
        if made.rewritten.is_read_by(ys, made.step.ops[made.step.first_backward :]):
            made.rewritten.undo()
            _parts(ys[0].graph).remove(made)
            say("gradients of planned gradients: the earlier plan became a part of the new step")


def rewrite_step(
    ys: Sequence[Any], gradients: Sequence[Any], request: Request, effects: Sequence[Any] = ()
) -> Applied | Answer:
    """Measures, plans and rewrites the step that makes `gradients` of `ys`, or, without gradients,
    a whole function whose outputs are `ys`. Returns what was done, or why nothing was. Raises
    RepriseError if that is what the request says, or if it is for checkpoints."""
    try:
        return _rewritten(ys, gradients, request, effects)
    except InfeasibleBudget:
        raise
    except Exception as error:
        if request.wish is None:
            raise
        return request.wish.failed(error)


def _rewritten(
    ys: Sequence[Any], gradients: Sequence[Any], request: Request, effects: Sequence[Any]
) -> Applied | Answer:
    graph = (ys or effects)[0].graph
    ordered = ordered_ops(ys, gradients, effects)
    stage, written = None, graph.as_graph_def()
    try:
        stage = _Stage(Rehearsal(ordered.targets, effects, request.batch), ordered, request)
        step = stage.step
    except RepriseError:
        # What a mode keeps does not depend on sizes, and programs for it do not give them.
        if request.wish is not None or request.batch is not None:
            raise
        step = capture(ordered, {}, 0, request.name)
    plan = None
    if request.wish is not None:
        assert stage is not None
        answer = request.wish.answered(stage.plan)
        if answer.plan is None:
            return answer
        plan = answer.plan
        schedule: Sequence[int] = plan.schedule
    else:
        assert request.checkpoints is not None
        schedule = _of_checkpoints(step, request.checkpoints)
    predicted = evaluate(step.graph, schedule, EXECUTOR)
    peak = stage.measured(schedule) if stage else 0
    made = Applied(
        step,
        plan,
        predicted,
        evaluate(step.graph, base_schedule(step.graph), EXECUTOR),
        peak_bytes=max(peak, predicted.peak_bytes) if peak and _has_metrics(step) else peak,
        rewritten=Rewriter(step, schedule),
        written=written,
        results=ordered.targets,
        effects=effects,
        batch=request.batch,
    )
    keep_away(graph)
    _parts(graph).append(made)
    return made


def _has_metrics(step: CapturedStep) -> bool:
    """Returns whether logits are read outside of the step, which may run with it or not. If it
    does, their gradient cannot take over their memory, as in the rehearsal."""
    inside = {op.name for op in step.ops}
    logits = [op.inputs[0] for op in step.ops if op.type in FORWARDING_SECOND]
    logits += [tensor.op.inputs[0] for tensor in logits if tensor.op.type in VIEWS]
    readers = [op for tensor in logits for op in tensor.consumers()]
    return any(op.name not in inside and op.type not in VIEWS for op in readers)


class _Stage:
    """A step in its rehearsal: what is planned for it is measured before it is promised."""

    def __init__(self, rehearsal: Rehearsal, ordered: Any, request: Request) -> None:
        self.rehearsal, self._request = rehearsal, request
        metadata = rehearsal.run(in_order(ordered.ops))
        names = {op.name for op in ordered.ops[0].graph.get_operations()} if ordered.ops else ()
        records = op_records(metadata, names)
        self.step = capture(ordered, records, rehearsal.static_bytes, request.name)
        graph = self.step.graph
        walked = evaluate(graph, base_schedule(graph), EXECUTOR).peak_bytes
        plain = rehearsal.peak_bytes(metadata)
        self._is_coarse = any(map(has_ops_inside, self.step.ops))
        is_same = _is_same(plain, walked)
        if plain > walked and not is_same:
            graph.measured_peak_bytes = plain  # the difference is held back in every budget
        if self._is_coarse or not is_same:
            graph.flavour = COARSE
        self._measured: dict[tuple[int, ...], int] = {}

    def measured(self, schedule: Sequence[int]) -> int:
        """Returns the peak of a schedule, measured in the copy."""
        key = tuple(schedule)
        if key not in self._measured:
            self._measured[key] = max(
                self.rehearsal.peak_bytes(
                    self.rehearsal.run(lambda graph: Rewriter(self.step.inside(graph), schedule))
                )
                for _ in range(COARSE_RUNS if self._is_coarse else 1)
            )
        return self._measured[key]

    def plan(self, budget: str | int) -> Plan:
        """Returns a plan that was measured to be within the budget. Raises InfeasibleBudget."""
        limit = self._request.wish.time_limit_s if self._request.wish else None
        graph, reserve, measured = self.step.graph, 0, 0
        for _ in range(MOST_ROUNDS):
            plan = ask(graph, budget, EXECUTOR, time_limit_s=limit, reserve_bytes=reserve)
            measured = self.measured(plan.schedule)
            is_known = graph.flavour == COARSE or _is_same(measured, plan.peak_bytes)
            if measured <= plan.budget_bytes and is_known:
                return plan
            graph.flavour = COARSE
            # A share stays what it was of the first plan.
            budget = plan.budget_bytes
            reserve += max(0, measured - plan.peak_bytes)
        raise InfeasibleBudget(
            f"No plan found for {format_bytes(int(budget))}: the step was measured at "
            f"{format_bytes(measured, up=True)} under the last one, and its ops show less."
        )


def _is_same(measured: int, walked: int) -> bool:
    return abs(measured - walked) <= VISIBLE * walked


def _of_checkpoints(step: CapturedStep, checkpoints: str | Sequence[Any]) -> Sequence[int]:
    graph, schedule = step.graph, schedule_of(step, checkpoints_of(step, checkpoints))
    if checkpoints != "memory":
        return schedule
    most = evaluate(graph, base_schedule(graph), EXECUTOR).peak_bytes
    left = evaluate(graph, schedule, EXECUTOR).peak_bytes
    if left - graph.static_bytes <= MOST_LEFT * (most - graph.static_bytes):
        return schedule
    # Articulation points do not divide this forward.
    try:
        return ask(graph, Budget.least(), EXECUTOR).schedule
    except InfeasibleBudget:  # a search may miss what the one before it has met
        return schedule
