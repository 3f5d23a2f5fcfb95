# SPDX-License-Identifier: Apache-2.0
"""Compares a planned step with its prediction, and its results with those of the written one.

    fetched, found = reprise.tensorflow.validate(session, [loss, *grads], feed_dict)
    print(found.sentence)                                            # Predicted ..., measured ...
    print(reprise.tensorflow.check(session, feed_dict).sentence)     # 16 results were compared: ...

For a comparison of bits, both graphs run in sessions of their own, without Grappler, on the same
values, also of what ops with state (random ones) returned. No variable of the program changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from reprise.base.errors import RepriseError
from reprise.plan import report_check, report_step
from reprise.plan.result import Known
from reprise.tensorflow.captured import step_ops
from reprise.tensorflow.kinds import kind_of
from reprise.tensorflow.planning import Applied, applied_to
from reprise.tensorflow.rehearsal import Rehearsal, fed, resources_of
from reprise.tensorflow.trace import peak_bytes, run_traced

_VARIABLES = frozenset({"ReadVariableOp", "Variable", "VariableV2", "Identity"})
# By plan: the number of the newest step that was reported.
_steps: dict[str, int] = {}


def _applied_in(session: Any, call: str) -> Applied:
    """Returns what was done to the graph of a session. Raises RepriseError if it is no session, or
    nothing was."""
    if not (hasattr(session, "graph") and hasattr(session, "run")):  # a monitored one, too
        raise RepriseError(f"{call}: must be a session of TensorFlow, got {session!r}"[:160])
    made = applied_to(session.graph)
    if made is None:
        raise RepriseError(f"{call}: no plan was applied to the graph that it runs")
    return made


def validate(session: Any, fetches: Any, feed_dict: Any = None) -> tuple[Any, Known]:
    """Runs a step as `session.run` does, traced, and compares its peak with the prediction. Returns
    the fetched values and the comparison. The step is also reported to the plan's run, for the page
    and `reprise show`. Run a step before it, because the first one allocates memory that stays.
    Raises RepriseError if the session's graph has no plan."""
    made = _applied_in(session, "validate")
    started = time.perf_counter_ns()
    fetched, metadata = run_traced(session, fetches, feed_dict)
    took = time.perf_counter_ns() - started
    measured = peak_bytes(metadata) + made.step.graph.static_bytes
    return fetched, reported(made, measured, took)


def reported(made: Applied, measured_bytes: int, step_ns: int) -> Known:
    """Reports a measured step of a plan to its run. Returns the comparison with the prediction.
    `step_ns` is 0 if the time was not measured."""
    made.measured_bytes = measured_bytes
    if made.plan is not None:
        step = _steps[made.plan.plan_id] = _steps.get(made.plan.plan_id, -1) + 1
        report_step(
            made.plan,
            step=step,
            peak_bytes=measured_bytes,
            step_ns=step_ns,
            recomputed=made.copies,
            predicted_peak_bytes=made.peak_bytes,
        )
    return made.known(made.measured)


def check(session: Any, feed_dict: Mapping[Any, Any] | None = None) -> Known:
    """Compares losses and gradients of the plan in the session's graph with those of the graph as
    it was written, for the present values of the session's variables and for `feed_dict`. An
    iterator of the graph is not asked for a batch; values are drawn instead. The comparison is
    reported to the plan's run, for the page and `reprise show`. Raises RepriseError if the graph
    has no plan, or an input has neither a value nor a known shape."""
    made = _applied_in(session, "check")
    given = {getattr(key, "name", key): value for key, value in (feed_dict or {}).items()}
    ops, sources = step_ops(made.results, made.effects)
    # What to fetch only reads a variable.
    wanted = {
        t.name: t
        for t in fed(ops, sources)
        if t.name not in given and t.op.type in _VARIABLES and not t.op.control_inputs
    }
    handles = {
        op.name: reader.outputs[0]
        for op in resources_of(ops, sources)
        for reader in op.outputs[0].consumers()
        if reader.type == "ReadVariableOp" and not reader.control_inputs
    }
    values, behind = session.run([wanted, handles])
    return compare(made, {**values, **given}, behind)


def compare(
    made: Applied, values: Mapping[str, Any], behind: Mapping[str, Any], step: int | None = None
) -> Known:
    """Runs the planned and the written step and returns the comparison, which is also reported to
    the plan's run. `values` are those of inputs by tensor name, `behind` those of variables that
    ops read by their handle, by the handle's op; what is in neither is drawn, and is zero behind a
    handle. `step` is the number that it is reported for, if not that of the newest validation."""
    stateful = [
        tensor.name
        for op in made.step.ops
        if kind_of(op) == "once"
        for tensor in op.outputs
        if tensor.dtype.base_dtype not in (tf.resource, tf.variant)
    ]
    stage = Rehearsal(made.results, made.effects, made.batch, values, behind)
    planned, found = stage.values(stage.definition, stateful, {})
    written, _ = stage.values(made.written, [], found)
    differing = [name for name in planned if not _same(planned[name], written.get(name))]
    first = differing[0] if differing else ""
    made.bits = not differing if planned else None
    made.compared = f"{len(planned)} results were compared: " + (
        f"{len(differing)} differ from those of the step as it was written, first {first}."
        if differing
        else "all are equal bit for bit."
    )
    if made.plan is not None:
        report_check(
            made.plan,
            step=_steps.get(made.plan.plan_id, 0) if step is None else step,
            checked=len(planned),
            differing=len(differing),
            first_differing=first,
        )
    return made.known(made.compared)


def _same(one: Any, other: Any) -> bool:
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype == np.object_ or b.dtype == np.object_:
        return a.shape == b.shape and bool(np.all(a == b))
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
