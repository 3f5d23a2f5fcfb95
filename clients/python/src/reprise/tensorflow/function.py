# SPDX-License-Identifier: Apache-2.0
"""Runs a training step of TensorFlow 2, with its tape and its optimizer, within a budget.

    step = reprise.tensorflow.auto(train_step, budget="0.5x")
    for images, labels in data: loss = step(images, labels)
    print(step.applied.sentence)

The function is traced as `tf.function` traces it; before the trace is closed, its graph is
rehearsed, planned and rewritten. Every new shape of its arguments has its own trace and plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from reprise.base.errors import RepriseError
from reprise.tensorflow.captured import step_ops
from reprise.tensorflow.checking import Checked, compare
from reprise.tensorflow.gradients import Applied, check_request, rewrite_step
from reprise.tensorflow.kinds import is_source
from reprise.tensorflow.rehearsal import Rehearsal, handle_type, rehearse, resources_of
from reprise.tensorflow.report import Validation, reported

__all__ = ["PlannedFunction", "auto"]


class PlannedFunction:
    """A planned step, called as the original function."""

    def __init__(
        self,
        step: Callable[..., Any],
        budget: str | int | None,
        checkpoints: str | Sequence[Any] | None,
        time_limit_s: float | None,
        batch: int | None = None,
        plainly: bool = False,
    ) -> None:
        """Takes the step and how it is planned. With `plainly`, a trace that has no plan runs as
        it is, and `refusal` says why; otherwise the call raises."""
        self._plainly = plainly
        # What was done to the newest trace; None before the first.
        self.applied: Applied | None = None
        # Why the newest trace has no plan.
        self.refusal: RepriseError | None = None
        self._targets: tuple[list[Any], list[Any]] = ([], [])
        self._step = step
        self._how: dict[str, Any] = {
            "budget": budget,
            "checkpoints": checkpoints,
            "time_limit_s": time_limit_s,
            "batch": batch,
        }
        self._function = tf.function(self._traced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step. The first one of every shape is traced and planned before it runs."""
        self.refusal = None
        if tf.config.functions_run_eagerly():
            raise RepriseError(
                "auto: functions run eagerly (tf.config.run_functions_eagerly(True)), so there is "
                "no graph to plan; call tf.config.run_functions_eagerly(False)"
            )
        try:
            return self._function(*args, **kwargs)
        except Exception:
            # Tracing wraps exceptions; raise the original one.
            if self.refusal is not None:
                raise self.refusal from None
            raise

    @property
    def is_awaited(self) -> bool:
        """Whether a step has ended when its call returns, as on CPUs."""
        return not tf.config.list_logical_devices("GPU")

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step while it is traced, then plans its graph; returns its result."""
        result = self._step(*args, **kwargs)
        self._plan(result)
        return result

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _plan(self, result: Any) -> None:
        """Rewrites the graph of the current trace, whose result is `result`. Raises RepriseError if
        it cannot be planned."""
        graph = tf.compat.v1.get_default_graph()
        outputs = [t for t in tf.nest.flatten(result) if tf.is_tensor(t) and t.graph is graph]
        effects = [
            op
            for op in graph.get_operations()
            if op.op_def.is_stateful and not is_source(op) and op.type != "Placeholder"
        ]
        if not outputs and not effects:
            return
        try:
            self.applied = rewrite_step(outputs, [], effects=effects, **self._how)
        except RepriseError as refusal:
            self.refusal = refusal
            if self._plainly:
                self.applied = None
                return
            raise
        self._targets = (outputs, effects)

    def rehearse(self) -> Rehearsal:
        """Runs the newest trace as it was rewritten, to measure its peak: in a session and on
        variables of its own, because eager execution leaves no record of memory. Returns its times
        and memory. Raises RepriseError if there is no trace yet."""
        if self.applied is None:
            raise RepriseError("the step was not called yet, so there is no trace to run")
        outputs, effects = self._targets
        return rehearse(outputs, self._how["batch"], effects, folded=True)

    def validate(self) -> Validation:
        """Measures the peak of the newest trace as `rehearse` does. Returns the comparison with the
        prediction, which is also reported to the plan's run. Raises RepriseError if there is no
        trace yet."""
        measured = self.rehearse().peak_bytes
        assert self.applied is not None
        return reported(self.applied, measured + self.applied.step.graph.static_bytes, 0)

    def check(self, *args: Any, **kwargs: Any) -> Checked:
        """Compares what the newest trace returns and gives its variables with what the step as it
        was written does, bit for bit, for these arguments and the present values of the variables,
        which do not change. Arguments that are left out are drawn. The comparison is reported to
        the plan's run. Raises RepriseError if there is no trace yet, or the arguments are not those
        of the newest trace."""
        return self.check_as(None, *args, **kwargs)

    def check_as(self, step: int | None, *args: Any, **kwargs: Any) -> Checked:
        """Compares as `check` does, and reports it for a step of this number."""
        if self.applied is None:
            raise RepriseError("the step was not called yet, so there is no trace to run")
        graph = self.applied.step.ops[0].graph
        outside = {inside.name: value for value, inside in graph.captures}
        values = _given(graph, outside, args, kwargs)
        ops, sources = step_ops(self.applied.results, self.applied.effects)
        for op in sources:
            if op.type == "ReadVariableOp" and op.inputs[0].name in outside:
                handle = outside[op.inputs[0].name]
                values[op.outputs[0].name] = _read(handle, op.outputs[0].dtype)
        behind = {
            op.name: _read(outside[op.outputs[0].name], handle_type(op)[1])
            for op in resources_of(ops, sources)
            if op.outputs[0].name in outside
        }
        return compare(self.applied, values, behind, step)


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
    fits = len(places) == len(arrays) and all(
        place.shape.is_compatible_with(array.shape)
        for place, array in zip(places, arrays, strict=True)
    )
    if not fits:
        raise RepriseError(
            "check: the arguments are not those of the newest call; it took "
            + ", ".join(f"{place.dtype.name}{place.shape}" for place in places)
        )
    return {
        place.name: np.asarray(array, place.dtype.as_numpy_dtype)
        for place, array in zip(places, arrays, strict=True)
    }


def _read(handle: Any, dtype: Any) -> Any:
    """Returns the value of the variable behind an eager handle."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def auto(
    step: Callable[..., Any],
    budget: str | int | None = None,
    *,
    checkpoints: str | Sequence[Any] | None = None,
    time_limit_s: float | None = None,
    batch: int | None = None,
) -> PlannedFunction:
    """Returns a function that does what `step` does, gradients and update, within `budget`, or
    keeping only `checkpoints`, as in `reprise.tensorflow.gradients`. `step` may be a `tf.function`.
    `batch` is the size to plan for where its arguments leave dimensions open.

    Raises `RepriseError` for a function with `jit_compile=True`, because XLA does not keep the
    order of ops. The first call may raise what `gradients` raises."""
    if (budget is None) == (checkpoints is None):
        raise RepriseError("auto: give either budget= or checkpoints=")
    if not callable(step):
        raise RepriseError(f"auto: the step must be a function, got {type(step).__name__}")
    if getattr(step, "_jit_compile", None):
        raise RepriseError(
            "auto: the step is compiled by XLA (jit_compile=True), which orders and merges ops as "
            "it likes; a plan needs it off"
        )
    check_request(budget, checkpoints, batch, time_limit_s)
    plain = getattr(step, "python_function", step)
    return PlannedFunction(plain, budget, checkpoints, time_limit_s, batch)
