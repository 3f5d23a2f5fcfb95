# SPDX-License-Identifier: Apache-2.0
"""Compares what a planned step computes with what the step as it was written computes, bit for bit.

    found = reprise.tensorflow.check(session, feed_dict)
    print(found.sentence)          # 16 results were compared: all are equal bit for bit.

Both graphs run in sessions of their own, without Grappler, on the same values: those of the
variables, of what is fed, and of what ops with state (random ones) have returned in the planned
step. No variable of the program changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from reprise.base.errors import RepriseError
from reprise.plan import report_check
from reprise.tensorflow.captured import step_ops
from reprise.tensorflow.gradients import Applied, applied_to, graph_of
from reprise.tensorflow.kinds import kind_of
from reprise.tensorflow.rehearsal import as_written, drawn, fed, handles_of, resources_of
from reprise.tensorflow.report import step_number

__all__ = ["Checked", "check", "compare"]

_VARIABLES = frozenset({"ReadVariableOp", "Variable", "VariableV2", "Identity"})


@dataclass(frozen=True, slots=True)
class Checked:
    """How many results of a planned step were compared, and how many differ from those of the step
    as it was written."""

    compared: int
    differing: int
    # The name of the first that differs; empty if none does.
    first: str = ""

    @property
    def equal(self) -> bool:
        """Whether results were compared and all are equal bit for bit."""
        return self.compared > 0 and not self.differing

    @property
    def sentence(self) -> str:
        """The comparison in one sentence."""
        if not self.compared:
            return "Nothing was compared: the step has no results."
        if not self.differing:
            return f"{self.compared} results were compared: all are equal bit for bit."
        return (
            f"{self.compared} results were compared: {self.differing} differ from those of the "
            f"step as it was written, first {self.first}."
        )


def check(session: Any, feed_dict: Mapping[Any, Any] | None = None) -> Checked:
    """Compares losses and gradients of the plan in the session's graph with those of the graph as
    it was written, for the present values of the session's variables and for `feed_dict`. An
    iterator of the graph is not asked for a batch; values are drawn instead. The comparison is
    reported to the plan's run, for the page and `reprise show`. Raises RepriseError if the graph
    has no plan, or an input has neither a value nor a known shape."""
    made = applied_to(graph_of(session, "check"))
    if made is None:
        raise RepriseError("check: no plan was applied to the graph that it runs")
    given = {getattr(key, "name", key): value for key, value in (feed_dict or {}).items()}
    ops, sources = step_ops(made.results, made.effects)
    wanted = [t for t in fed(ops, sources) if t.name not in given and _is_variable(t.op)]
    reads = {op.name: _read_of(op) for op in resources_of(ops, sources)}
    handles = {name: read for name, read in reads.items() if read is not None}
    values, behind = session.run([{t.name: t for t in wanted}, handles])
    return compare(made, {**values, **given}, behind)


def _is_variable(op: Any) -> bool:
    """Returns whether fetching an op's output only reads a variable."""
    return op.type in _VARIABLES and not op.control_inputs


def _read_of(handle: Any) -> Any:
    """Returns a tensor with the value of the variable behind a handle; None if the graph has
    none."""
    for reader in handle.outputs[0].consumers():
        if reader.type == "ReadVariableOp" and not reader.control_inputs:
            return reader.outputs[0]
    return None


def compare(
    made: Applied,
    values: Mapping[str, Any],
    behind: Mapping[str, Any],
    step: int | None = None,
) -> Checked:
    """Runs the planned and the written step and returns the comparison, which is also reported to
    the plan's run. `values` are those of inputs by tensor name, `behind` those of variables that
    ops read by their handle, by the handle's op; what is in neither is drawn, and is zero behind a
    handle. `step` is the number that it is reported for, if not that of the newest validation."""
    ops, sources = step_ops(made.results, made.effects)
    inputs = {t.name: values.get(t.name) for t in fed(ops, sources)}
    for tensor in fed(ops, sources):
        if inputs[tensor.name] is None:
            inputs[tensor.name] = drawn(tensor, made.batch)
    names = [tensor.name for tensor in made.results]
    effects = [op.name for op in made.effects]
    stateful = [
        tensor.name
        for op in made.step.ops
        if kind_of(op) == "once"
        for tensor in op.outputs
        if tensor.dtype.base_dtype not in (tf.resource, tf.variant)
    ]
    graph = made.step.ops[0].graph
    run = _Runner(ops, sources, inputs, behind)
    planned, found = run(graph.as_graph_def(), names, effects, stateful, {})
    written, _ = run(made.written, names, effects, [], found)
    differing = [name for name in planned if not _same(planned[name], written.get(name))]
    checked = Checked(len(planned), len(differing), differing[0] if differing else "")
    if made.plan is not None:
        report_check(
            made.plan,
            step=step_number(made.plan.plan_id) if step is None else step,
            checked=checked.compared,
            differing=checked.differing,
            first_differing=checked.first,
        )
    return checked


class _Runner:
    """Runs a graph on fixed inputs, in a session and with variables of its own."""

    def __init__(
        self,
        ops: Sequence[Any],
        sources: Sequence[Any],
        inputs: Mapping[str, Any],
        behind: Mapping[str, Any],
    ) -> None:
        self._ops, self._sources = ops, sources
        self._inputs, self._behind = inputs, behind

    def __call__(
        self,
        definition: Any,
        results: Sequence[str],
        effects: Sequence[str],
        more: Sequence[str],
        known: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the values of the results and of what the effects are given, and those of `more`
        tensors, by name. `known` values are fed."""
        with tf.Graph().as_default() as graph:
            handles, initial = handles_of(self._ops, self._sources, self._behind)
            tf.import_graph_def(definition, input_map=handles, name="")
            wanted = {name: graph.get_tensor_by_name(name) for name in results}
            for name in effects:
                for index, tensor in enumerate(graph.get_operation_by_name(name).inputs):
                    if tensor.dtype.base_dtype not in (tf.resource, tf.variant):
                        wanted[f"{name}, input {index}"] = tensor
            also = {name: graph.get_tensor_by_name(name) for name in more}
            with tf.compat.v1.Session(graph=graph, config=as_written(folded=True)) as session:
                session.run(initial)
                values, others = session.run([wanted, also], {**self._inputs, **known})
        return values, others


def _same(one: Any, other: Any) -> bool:
    """Returns whether two arrays have the same shape, type and bits."""
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype == np.object_ or b.dtype == np.object_:
        return a.shape == b.shape and bool(np.all(a == b))
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
