# SPDX-License-Identifier: Apache-2.0
"""Measures a step before it is planned: in a copy of the graph, on inputs of the same shapes.

A graph that a session has run can no longer be rewritten, so times, workspaces and sizes come from
a copy of it in a session of its own. Variables and inputs are fed: their values do not affect
bytes, and the program's variables are not touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from reprise.base.errors import RepriseError
from reprise.tensorflow.captured import constant_bytes, step_ops
from reprise.tensorflow.kinds import is_source
from reprise.tensorflow.trace import OpRecord, op_records, peak_bytes, run_traced

__all__ = [
    "Rehearsal",
    "as_written",
    "drawn",
    "fed",
    "handle_type",
    "handles_of",
    "rehearse",
    "resources_of",
    "unmeasured",
]


# What returns the value of a variable: by its handle, and, in TensorFlow 1, by reference.
_READING = frozenset({"ReadVariableOp", "Identity"})


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Times and memory of one plain step."""

    records: Mapping[str, OpRecord]
    # Bytes of variables and inputs, which no op of the step allocates.
    static_bytes: int
    # The peak above those.
    peak_bytes: int
    # The graph that ran, as a GraphDef.
    definition: Any


def rehearse(
    targets: Sequence[Any],
    batch: int | None = None,
    effects: Sequence[Any] = (),
    folded: bool = False,
) -> Rehearsal:
    """Runs the step that makes `targets`, with the ops that are its `effects`, and returns its
    times and memory. `batch` is the size to assume for dimensions that the graph leaves open. With
    `folded`, constants are computed beforehand, as in any session; otherwise every op is measured.
    Raises RepriseError that names an input whose shape is not known, or says why the step does not
    run."""
    ops, sources = step_ops(targets, effects)
    graph = (targets[0] if targets else effects[0]).graph
    reads, known = fed(ops, sources), _captured(graph)
    values = {t.name: known[t.name] if t.name in known else drawn(t, batch) for t in reads}
    scratch = tf.Graph()
    with scratch.as_default():
        definition = graph.as_graph_def()
        handles, initial = handles_of(ops, sources)
        tf.import_graph_def(definition, input_map=handles, name="")
        names = [thing.name for thing in (*targets, *effects)]
        try:
            with tf.compat.v1.Session(graph=scratch, config=as_written(folded)) as session:
                session.run(initial)
                run_traced(session, names, values)  # some work is done only in the first run
                _, metadata = run_traced(session, names, values)
        except tf.errors.OpError as error:
            sizes = "" if batch is None else f" with {batch} for open dimensions"
            raise RepriseError(
                f"the step does not run on drawn inputs{sizes}: {_reason(error.message)}"
            ) from error
    static = _static_bytes(reads, values, resources_of(ops, sources)) + constant_bytes(sources)
    peak = peak_bytes(metadata, _released(effects))
    return Rehearsal(op_records(metadata), static, peak, definition)


def _released(effects: Iterable[Any]) -> dict[str, int]:
    """Returns, by op, the bytes of the old value of each variable that is given another one as a
    whole: the new value's memory becomes the variable's."""
    found = {}
    for op in effects:
        if op.type == "AssignVariableOp" and op.inputs[1].shape.is_fully_defined():
            value = op.inputs[1]
            found[op.name] = int(value.shape.num_elements()) * int(value.dtype.size)
    return found


def _static_bytes(reads: Iterable[Any], values: Mapping[str, Any], handles: Iterable[Any]) -> int:
    """Returns the bytes of inputs and variables. A step reads a variable in several places (in
    every layer that shares it, and to update it), and has it in memory once."""
    found: dict[str, int] = {}
    for tensor in reads:
        read = tensor.op
        place = read.inputs[0] if read.type in _READING and read.inputs else tensor
        found[place.name] = max(found.get(place.name, 0), int(values[tensor.name].nbytes))
    for op in handles:
        found.setdefault(op.outputs[0].name, _handle_bytes(op))
    return sum(found.values())


def _reason(message: str) -> str:
    """Returns the line of an error of TensorFlow that says what is wrong: before the op's name."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for before, line in itertools.pairwise(lines):
        if line.startswith("[[{{node"):
            return before
    return lines[0].split(" [[{{node")[0] if lines else "no reason was given"


def unmeasured(targets: Sequence[Any], effects: Sequence[Any] = ()) -> Rehearsal | None:
    """Returns a rehearsal without figures if the shapes of inputs are not known; otherwise None."""
    ops, sources = step_ops(targets, effects)
    graph = (targets[0] if targets else effects[0]).graph
    known = _captured(graph)
    if all(t.name in known or t.shape.is_fully_defined() for t in fed(ops, sources)):
        return None
    return Rehearsal({}, 0, 0, graph.as_graph_def())


def _captured(graph: Any) -> dict[str, Any]:
    """Returns the values that a function has captured from outside; sizes and axes may be among
    them."""
    return {
        inside.name: outside.numpy()
        for outside, inside in getattr(graph, "captures", ())
        if hasattr(outside, "numpy") and outside.dtype not in (tf.resource, tf.variant)
    }


def as_written(folded: bool) -> Any:
    """Returns a session configuration that runs the graph op by op, without rewriting it."""
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    if not folded:
        config.graph_options.optimizer_options.opt_level = -1
    return config


def fed(ops: Iterable[Any], sources: Iterable[Any]) -> list[Any]:
    """Returns the tensors that sources bring into the step, except constants and handles of
    variables."""
    read = {tensor.name: tensor for op in ops for tensor in op.inputs}
    values = [op for op in sources if is_source(op) and op.type != "Const"]
    brought = {tensor.name for op in values for tensor in op.outputs}
    return [
        tensor
        for name, tensor in read.items()
        if name in brought and tensor.dtype.base_dtype not in (tf.resource, tf.variant)
    ]


def drawn(tensor: Any, batch: int | None) -> Any:
    """Returns an array of a tensor's shape and type. Raises RepriseError if its shape is not
    known."""
    shape = tensor.shape
    if shape.rank is None or (batch is None and not shape.is_fully_defined()):
        raise RepriseError(
            f"{tensor.name}: its shape {shape} is not known before the step runs; give it, or "
            "batch=, the size to plan for"
        )
    sizes: list[Any] = [batch if size is None else size for size in shape.as_list()]
    dtype = tensor.dtype.base_dtype.as_numpy_dtype
    if np.issubdtype(dtype, np.integer) or dtype in (np.bool_, np.object_):
        return np.zeros(sizes, dtype)
    return np.random.default_rng(0).normal(0, 0.1, sizes).astype(dtype)


# ---- Variables that ops read by their handle ------------------------------------


def resources_of(ops: Iterable[Any], sources: Iterable[Any]) -> list[Any]:
    """Returns the handles of variables that ops of the step read directly, as embeddings do."""
    taken = {tensor.op.name for op in ops for tensor in op.inputs if tensor.dtype == tf.resource}
    return [op for op in sources if op.name in taken]


def _handle_bytes(op: Any) -> int:
    """Returns the bytes of the variable behind a handle."""
    shape, dtype = handle_type(op)
    return int(np.prod(shape, dtype=np.int64)) * int(dtype.size)


def handle_type(op: Any) -> tuple[list[int], Any]:
    """Returns shape and type of the variable behind a handle. Raises RepriseError if it is no
    variable."""
    data = handle_data_util.get_resource_handle_data(op.outputs[0])
    if data is not None and data.is_set and len(data.shape_and_type) == 1:
        found = data.shape_and_type[0]
        return [d.size for d in found.shape.dim], tf.dtypes.as_dtype(found.dtype)
    if op.type == "VarHandleOp":
        shape = tf.TensorShape(op.get_attr("shape"))
        return shape.as_list(), tf.dtypes.as_dtype(op.get_attr("dtype"))
    raise RepriseError(f"{op.name}: reads a resource that is no variable, which cannot be planned")


def handles_of(
    ops: Iterable[Any], sources: Iterable[Any], values: Mapping[str, Any] = MappingProxyType({})
) -> tuple[dict[str, Any], list[Any]]:
    """Makes a variable in the copy for each of these handles, with the value of that name, or of
    zeros. Returns the new handles by the old names, and the ops that initialize them."""
    handles, initial = {}, []
    for op in resources_of(ops, sources):
        shape, dtype = handle_type(op)
        handle = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=shape, shared_name=f"reprise/{op.name}", name="reprise_variable"
        )
        value = values.get(op.name)
        if value is None:
            value = np.zeros(shape, dtype.as_numpy_dtype)
        initial.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        handles[op.outputs[0].name] = handle
    return handles, initial
