# SPDX-License-Identifier: Apache-2.0
"""`tf.gradients` with a memory budget, or with checkpoints.

    grads = reprise.tensorflow.gradients(loss, variables, budget="0.5x")
    grads = reprise.tensorflow.gradients(loss, variables, checkpoints="memory")

The graph is rewritten while it is built (rewrite.py): copies of ops recompute what the plan
discards. All gradients are bit for bit the same. The graph must not have run in a session before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

import tensorflow as tf
from tensorflow.python.ops import gradients_impl

from reprise.agent.received import InfeasibleBudget
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.plan import Evaluation, Plan, base_schedule, evaluate
from reprise.plan import plan as ask
from reprise.plan.asking import check_time_limit
from reprise.tensorflow.captured import CapturedStep, capture
from reprise.tensorflow.grappler import keep_away
from reprise.tensorflow.in_place import peak_in_place
from reprise.tensorflow.modes import checkpoints_of, schedule_of
from reprise.tensorflow.rehearsal import rehearse, unmeasured
from reprise.tensorflow.rewrite import apply

# Bound at import, because a program may replace it with this module's function later; and not by
# `tf.compat.v1`, which no longer sees an assignment to its `__dict__` once it has looked a name up.
_plain_gradients = gradients_impl.gradients

__all__ = ["Applied", "applied_to", "check_request", "gradients", "graph_of", "rewrite_step"]

EXECUTOR = "tf-graph"


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done to a graph. Bytes include variables and inputs."""

    step: CapturedStep
    # None for checkpoints, whose schedule is not the planner's.
    plan: Plan | None
    predicted: Evaluation
    # The peak of the schedule as TensorFlow runs it, where ops overwrite inputs that end.
    peak_bytes: int
    # The step in base order, without a plan, and its peak as measured in the rehearsal.
    base: Evaluation
    plain_peak_bytes: int
    copies: int
    # The last op of the step.
    last: Any
    # The graph before it was rewritten, as a GraphDef; the tensors and the ops with effects that
    # the step is for; the size of open dimensions.
    written: Any
    results: Sequence[Any]
    effects: Sequence[Any]
    batch: int | None
    # False for checkpoints in a graph that leaves sizes open: then no figure is a prediction.
    predictable: bool = True

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.plan is not None:
            return self.plan.sentence
        if not self.predictable:
            return (
                f"Checkpoints: {self.copies} ops run again; peak and time are not predicted, "
                "because the graph leaves sizes open (batch= gives them)."
            )
        more = self.predicted.time_ns / max(1, self.base.time_ns) - 1
        return (
            f"Checkpoints: peak {self.peak_bytes} bytes (was {self.base.peak_bytes}), "
            f"{self.copies} ops run again, {more:+.1%} time predicted."
        )


# By graph: the newest rewrite of it.
_ATTRIBUTE = "_reprise_applied"


def applied_to(graph: Any) -> Applied | None:
    """Returns what the newest call did to a graph; None if there was none."""
    return getattr(graph, _ATTRIBUTE, None)


def graph_of(session: Any, call: str) -> Any:
    """Returns the graph of a session. Raises RepriseError if it is none."""
    if not (hasattr(session, "graph") and hasattr(session, "run")):  # a monitored one, too
        raise RepriseError(f"{call}: must be a session of TensorFlow, got {session!r}"[:160])
    return session.graph


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool | int = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    *,
    budget: str | int | None = None,
    checkpoints: str | Sequence[Any] | None = None,
    batch: int | None = None,
    time_limit_s: float | None = None,
) -> list[Any]:
    """Returns gradients as `tf.compat.v1.gradients` does, with either a `budget` ("0.5x", "2GiB",
    or bytes; it covers variables, inputs and everything that the step allocates) or `checkpoints`:
    "memory", "speed", "collection" or a list of tensors. `batch` is the size to assume for
    dimensions that the graph leaves open; checkpoints work without it, but nothing is predicted.

    Raises `InfeasibleBudget`, which names the op that needs more, and leaves the graph as
    `tf.compat.v1.gradients` makes it; `RepriseError` for what cannot be planned."""
    if (budget is None) == (checkpoints is None):
        raise RepriseError("gradients: give either budget= or checkpoints=")
    check_request(budget, checkpoints, batch, time_limit_s)
    outputs = _flat(ys)
    found = _plain_gradients(
        ys,
        xs,
        grad_ys,
        name=name,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
        gate_gradients=gate_gradients,
        aggregation_method=aggregation_method,
        stop_gradients=stop_gradients,
        unconnected_gradients=unconnected_gradients,
    )
    if not _values(found):
        return list(found)
    made = rewrite_step(
        outputs,
        _values(found),
        budget=budget,
        checkpoints=checkpoints,
        batch=batch,
        time_limit_s=time_limit_s,
    )
    return [_after(made, gradient) for gradient in found]


def check_request(budget: object, checkpoints: object, batch: object, time_limit_s: object) -> None:
    """Raises RepriseError for what no plan can be asked with, before anything is added to the
    graph."""
    if budget is not None:
        Budget(budget)  # type: ignore[arg-type]
    if checkpoints is not None and not isinstance(checkpoints, (str, Sequence)):
        raise RepriseError(
            f"checkpoints: must be a mode or a list of tensors, got {checkpoints!r}"[:160]
        )
    for tensor in () if checkpoints is None or isinstance(checkpoints, str) else checkpoints:
        if not hasattr(tensor, "name") or not hasattr(tensor, "op"):
            raise RepriseError(f"checkpoints: must be tensors of the graph, got {tensor!r}"[:160])
    is_number = isinstance(batch, SupportsIndex) and not isinstance(batch, bool)
    if batch is not None and not (is_number and index(batch) > 0):  # type: ignore[arg-type]
        raise RepriseError(f"batch: must be an integer above 0, got {batch!r}"[:160])
    if time_limit_s is not None:
        check_time_limit(time_limit_s)


def _after(made: Applied, gradient: Any) -> Any:
    """Returns the gradient, which is not available before the last op of the step has run if the
    step reads variables that are changed in place, as those of TensorFlow 1 are: an update must not
    come before their last reader."""
    in_place = any(t.dtype._is_ref_dtype for op in made.step.sources for t in op.inputs)
    if not in_place or gradient is None or made.last is None:
        return gradient
    graph = made.last.graph
    with graph.control_dependencies([made.last]):
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.identity(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.identity(gradient)


def rewrite_step(
    ys: Sequence[Any],
    gradients: Sequence[Any],
    *,
    budget: str | int | None,
    checkpoints: str | Sequence[Any] | None,
    batch: int | None = None,
    time_limit_s: float | None = None,
    effects: Sequence[Any] = (),
) -> Applied:
    """Measures, plans and rewrites the step that makes `gradients` of `ys`, or, without gradients,
    a whole function whose outputs are `ys`. Returns what was done."""
    graph = (ys or effects)[0].graph
    targets = [*ys, *gradients]
    found = None
    if checkpoints is not None and batch is None:
        # What a mode keeps does not depend on sizes, and programs for it do not give them.
        found = unmeasured(targets, effects)
    predictable = found is None
    if found is None:
        found = rehearse(targets, batch, effects)
    step = capture(ys, gradients, found.records, found.static_bytes, "TensorFlow step", effects)
    plan = None
    if budget is not None:
        plan = ask(step.graph, budget, EXECUTOR, time_limit_s=time_limit_s)
        schedule: Sequence[int] = plan.schedule
    else:
        assert checkpoints is not None
        schedule = _of_checkpoints(step, checkpoints)
    predicted = evaluate(step.graph, schedule, EXECUTOR)
    peak = peak_in_place(step, schedule, predicted)
    base = evaluate(step.graph, base_schedule(step.graph), EXECUTOR)
    copies, last = apply(step, schedule)
    keep_away(graph)
    plain = found.peak_bytes + found.static_bytes
    made = Applied(
        step,
        plan,
        predicted,
        peak,
        base,
        plain,
        copies,
        last,
        written=found.definition,
        results=(*ys, *gradients),
        effects=tuple(effects),
        batch=batch,
        predictable=predictable,
    )
    setattr(graph, _ATTRIBUTE, made)
    return made


def _of_checkpoints(step: CapturedStep, checkpoints: str | Sequence[Any]) -> Sequence[int]:
    """Returns the schedule for a set of checkpoints."""
    try:
        return schedule_of(step, checkpoints_of(step, checkpoints))
    except RepriseError:
        if checkpoints != "memory":
            raise
    # There are no articulation points: use the smallest budget for which the planner has a plan.
    try:
        return ask(step.graph, 1, EXECUTOR).schedule
    except InfeasibleBudget as refusal:
        answer = refusal.plan
        if answer is None or answer.infeasible is None:
            raise
        smallest = answer.infeasible.smallest_known_bytes or step.graph.static_bytes
        return ask(step.graph, smallest, EXECUTOR).schedule


def _flat(ys: Any) -> list[Any]:
    """Returns all tensors in a structure."""
    return [tf.convert_to_tensor(y) for y in tf.nest.flatten(ys)]


def _values(found: Sequence[Any]) -> list[Any]:
    """Returns the tensors of the gradients. The gradient of an embedding has two: values and row
    numbers."""
    tensors: list[Any] = []
    for gradient in found:
        if isinstance(gradient, tf.IndexedSlices):
            tensors += [t for t in (gradient.values, gradient.indices) if t is not None]
        elif gradient is not None:
            tensors.append(gradient)
    return tensors
