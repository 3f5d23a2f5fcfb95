# SPDX-License-Identifier: Apache-2.0
"""Runs a training step of TensorFlow 2, with its tape and its optimizer, within a budget.

    step = reprise.tensorflow.auto(train_step, budget="0.5x")
    for images, labels in data: loss = step(images, labels)
    print(reprise.report(step))

The function is traced as `tf.function` traces it; before the trace is closed, its graph is
rehearsed, planned and rewritten. Every new shape of its arguments has its own trace and plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from reprise.base.errors import RepriseError
from reprise.plan.result import Known, Result
from reprise.plan.wish import Answer, is_disabled
from reprise.tensorflow.captured import step_ops
from reprise.tensorflow.kinds import is_source
from reprise.tensorflow.planning import Applied, Request, rewrite_step
from reprise.tensorflow.rehearsal import Rehearsal, handle_type, resources_of
from reprise.tensorflow.report import compare, reported


class PlannedFunction:
    """A planned step, called as the original function."""

    def __init__(self, step: Callable[..., Any], request: Request | None) -> None:
        """Takes the step and what is asked for it; None: it runs as it is."""
        # What was done to the newest trace, or why nothing was; None before the first.
        self.applied: Applied | None = None
        self.refused: Answer | None = None
        # What the newest call raised while it was planned.
        self.error: Exception | None = None
        self._step, self._request = step, request
        self._function = tf.function(self._traced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step. The first one of every shape is traced and planned before it runs."""
        self.error = None
        if self._request is not None and tf.config.functions_run_eagerly():
            raise RepriseError(
                "auto: functions run eagerly (tf.config.run_functions_eagerly(True)), so there is "
                "no graph to plan; call tf.config.run_functions_eagerly(False)"
            )
        try:
            return self._function(*args, **kwargs)
        except Exception:
            # Tracing wraps exceptions; raise the original one.
            if self.error is not None:
                raise self.error from None
            raise

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step while it is traced, then plans its graph; returns its result. A trace that
        creates variables, as an optimizer does in the first one, is left as it is: TensorFlow
        throws it away and traces once more."""
        created: list[Any] = []

        def create(make: Any, **how: Any) -> Any:
            created.append(make(**how))
            return created[-1]

        with tf.variable_creator_scope(create):
            result = self._step(*args, **kwargs)
        if not created:
            self._plan(result)
        return result

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _plan(self, result: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        outputs = [t for t in tf.nest.flatten(result) if tf.is_tensor(t) and t.graph is graph]
        effects = [
            op
            for op in graph.get_operations()
            if op.op_def.is_stateful and not is_source(op) and op.type != "Placeholder"
        ]
        if not (outputs or effects) or self._request is None:
            return
        try:
            made = rewrite_step(outputs, [], self._request, effects)
        except Exception as error:
            self.error = error
            raise
        self.applied = made if isinstance(made, Applied) else None
        self.refused = made if isinstance(made, Answer) else None

    def reprise_report(self) -> Result:
        """Returns what is known of the newest trace, for `reprise.report`."""
        if self.applied is not None:
            return self.applied.known()
        if self.refused is not None:
            return Known(self.refused.why, budget_bytes=self.refused.budget_bytes)
        return Known(
            "No step has run yet." if self._request else "Not planned: REPRISE_DISABLE=1 is set."
        )

    def measure(self) -> Known:
        """Measures the peak of the newest trace as it was rewritten: in a session and on variables
        of its own, because eager execution leaves no record of memory. Returns the comparison with
        the prediction. Raises RepriseError if no trace has a plan."""
        made = self._made()
        stage = Rehearsal(made.results, made.effects, made.batch)
        made.measured_bytes = stage.peak_bytes(stage.run(lambda _: None))
        return made.known(made.measured)

    def validate(self) -> Known:
        """Does what `measure` does, and reports it to the plan's run."""
        return reported(self._made(), self.measure().measured_bytes, 0)

    def _made(self) -> Applied:
        if self.applied is None:
            raise RepriseError("the step was not called yet, or has no plan: there is no trace")
        return self.applied

    def check(self, *args: Any, **kwargs: Any) -> Known:
        """Compares what the newest trace returns and gives its variables with what the step as it
        was written does, bit for bit, for these arguments and the present values of the variables,
        which do not change. Arguments that are left out are drawn. The comparison is reported to
        the plan's run. Raises RepriseError if there is no trace yet, or the arguments are not those
        of the newest trace."""
        return self.check_as(None, *args, **kwargs)

    def check_as(self, step: int | None, *args: Any, **kwargs: Any) -> Known:
        """Compares as `check` does, and reports it for a step of this number."""
        made = self._made()
        graph = made.step.ops[0].graph
        outside = {inside.name: value for value, inside in graph.captures}
        values = _given(graph, outside, args, kwargs)
        ops, sources = step_ops(made.results, made.effects)
        for op in sources:
            if op.type == "ReadVariableOp" and op.inputs[0].name in outside:
                handle = outside[op.inputs[0].name]
                values[op.outputs[0].name] = _read(handle, op.outputs[0].dtype)
        behind = {
            op.name: _read(outside[op.outputs[0].name], handle_type(op)[1])
            for op in resources_of(ops, sources)
            if op.outputs[0].name in outside
        }
        return compare(made, values, behind, step)


def _given(graph: Any, captured: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the arguments by the name of their placeholder. Raises RepriseError if they are not
    those of the trace."""
    if not args and not kwargs:
        return {}
    places = [tensor for tensor in graph.inputs if tensor.name not in captured]
    arrays = [
        value
        for value in tf.nest.flatten((args, kwargs), expand_composites=True)
        if tf.is_tensor(value) or isinstance(value, (np.ndarray, np.generic))
    ]
    if len(places) != len(arrays) or not all(
        map(lambda place, array: place.shape.is_compatible_with(array.shape), places, arrays)
    ):
        raise RepriseError(
            "check: the arguments are not those of the newest call; it took "
            + ", ".join(f"{place.dtype.name}{place.shape}" for place in places)
        )
    pairs = zip(places, arrays, strict=True)
    return {p.name: np.asarray(array, p.dtype.as_numpy_dtype) for p, array in pairs}


def _read(handle: Any, dtype: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def auto(
    step: Callable[..., Any],
    budget: str | int | None = None,
    *,
    checkpoints: str | Sequence[Any] | None = None,
    time_limit_s: float | None = None,
    batch: int | None = None,
    on_infeasible: str = "plain",
    max_overhead: float | None = None,
    name: str | None = None,
) -> PlannedFunction:
    """Returns a function that does what `step` does, gradients and update, within `budget`, or
    keeping only `checkpoints`, with the arguments of `reprise.tensorflow.gradients`. `step` may be
    a `tf.function`. `batch` is the size to plan for where its arguments leave dimensions open.
    `name` is that of the run; without it, the function's.

    Raises `RepriseError` for a function with `jit_compile=True`, because XLA does not keep the
    order of ops. The first call of a shape does what `on_infeasible` says."""
    if not callable(step):
        raise RepriseError(f"auto: the step must be a function, got {type(step).__name__}")
    plain = getattr(step, "python_function", step)
    title = name or getattr(plain, "__name__", None)
    request = Request.of(
        "auto", budget, checkpoints, batch, title, on_infeasible, max_overhead, time_limit_s
    )
    if is_disabled():
        return PlannedFunction(plain, None)
    if getattr(step, "_jit_compile", None):
        raise RepriseError(
            "auto: the step is compiled by XLA (jit_compile=True), which orders and merges ops as "
            "it likes; a plan needs it off"
        )
    return PlannedFunction(plain, request)
