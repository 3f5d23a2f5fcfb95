# SPDX-License-Identifier: Apache-2.0
"""Measures a step before anything is promised of it: in a copy of the graph, in a session of its
own, because a graph that a session has run can no longer be rewritten. Variables and inputs are
fed: their values do not affect bytes, and the program's variables are not touched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from reprise.base.errors import RepriseError
from reprise.tensorflow.captured import constant_bytes, step_ops
from reprise.tensorflow.kinds import is_source
from reprise.tensorflow.rewrite import run_one_by_one
from reprise.tensorflow.trace import peak_bytes, run_traced

# What returns the value of a variable: by its handle, and, in TensorFlow 1, by reference.
_READING = frozenset({"ReadVariableOp", "Identity"})


class Rehearsal:
    """A step in a copy of its graph, with values for all that it reads."""

    def __init__(
        self,
        targets: Sequence[Any],
        effects: Sequence[Any] = (),
        batch: int | None = None,
        values: Mapping[str, Any] = MappingProxyType({}),
        behind: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Takes what the step makes, its ops with effects, and the size to assume for dimensions
        that the graph leaves open; values by the names of tensors, and of variables by the names of
        their handles' ops. Other values are drawn, or zero behind a handle. Raises RepriseError
        that names an input whose shape is not known."""
        self._ops, self._sources = step_ops(targets, effects)
        graph = (targets[0] if targets else effects[0]).graph
        # The graph that runs, as a GraphDef.
        self.definition = graph.as_graph_def()
        reads, known = fed(self._ops, self._sources), {**_captured(graph), **values}
        self._values = {
            t.name: known[t.name] if t.name in known else drawn(t, batch) for t in reads
        }
        self._behind = behind
        self._targets = [tensor.name for tensor in targets]
        self._effects = [op.name for op in effects]
        self._released = _released(effects)
        self._sizes = "" if batch is None else f" with {batch} for open dimensions"
        # Bytes of variables and inputs, which no op of the step allocates.
        self.static_bytes = _static_bytes(
            reads, self._values, resources_of(self._ops, self._sources)
        ) + constant_bytes(self._sources)

    @contextmanager
    def _session(self, definition: Any, arrange: Callable[[Any], object]) -> Iterator[Any]:
        """Opens a session on a copy of a graph, with variables of its own, that runs op by op."""
        with tf.Graph().as_default() as graph:
            handles, initial = handles_of(self._ops, self._sources, self._behind)
            tf.import_graph_def(definition, input_map=handles, name="")
            arrange(graph)
            config = tf.compat.v1.ConfigProto(
                inter_op_parallelism_threads=1, allow_soft_placement=True
            )
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            with tf.compat.v1.Session(graph=graph, config=config) as session:
                session.run(initial)
                yield session

    def run(self, arrange: Callable[[Any], object]) -> Any:
        """Runs the step in a copy that `arrange` was given to change. Returns what TensorFlow
        recorded. Raises RepriseError that says why the step does not run."""
        names = [*self._targets, *self._effects]
        try:
            with self._session(self.definition, arrange) as session:
                # Some work is done only in the first run.
                run_traced(session, names, self._values)
                return run_traced(session, names, self._values)[1]
        except tf.errors.OpError as error:
            raise RepriseError(
                f"the step does not run on drawn inputs{self._sizes}: {_reason(error.message)}"
            ) from error

    def values(
        self, definition: Any, more: Sequence[str], known: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runs a graph that has the ops of the step. Returns the values of what the step makes and
        of what its effects are given, and those of `more` tensors, by name. `known` values are
        fed."""
        with self._session(definition, lambda _: None) as session:
            graph = session.graph
            wanted = {name: graph.get_tensor_by_name(name) for name in self._targets}
            for name in self._effects:
                for at, tensor in enumerate(graph.get_operation_by_name(name).inputs):
                    if tensor.dtype.base_dtype not in (tf.resource, tf.variant):
                        wanted[f"{name}, input {at}"] = tensor
            also = {name: graph.get_tensor_by_name(name) for name in more}
            made, others = session.run([wanted, also], {**self._values, **known})
        return made, others

    def peak_bytes(self, metadata: Any) -> int:
        """Returns the peak of such a run, with variables and inputs."""
        return self.static_bytes + peak_bytes(metadata, self._released)


def in_order(ops: Iterable[Any]) -> Callable[[Any], None]:
    """Returns what makes a copy of a graph run these ops one after the other."""

    def arrange(graph: Any) -> None:
        copies = [graph.get_operation_by_name(op.name) for op in ops]
        for op in copies:
            run_one_by_one(op)
        for before, op in itertools.pairwise(copies):
            op._add_control_input(before)

    return arrange


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
        shape, dtype = handle_type(op)
        found.setdefault(op.outputs[0].name, math.prod(shape) * int(dtype.size))
    return sum(found.values())


def _reason(message: str) -> str:
    """Returns the line of an error of TensorFlow that says what is wrong: before the op's name."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for before, line in itertools.pairwise(lines):
        if line.startswith("[[{{node"):
            return before
    return lines[0].split(" [[{{node")[0] if lines else "no reason was given"


def _captured(graph: Any) -> dict[str, Any]:
    """Returns the values that a function has captured from outside; sizes and axes may be among
    them."""
    return {
        inside.name: outside.numpy()
        for outside, inside in getattr(graph, "captures", ())
        if hasattr(outside, "numpy") and outside.dtype not in (tf.resource, tf.variant)
    }


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
    ops: Iterable[Any], sources: Iterable[Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Makes a variable in the copy for each of these handles, with the value of that name, or of
    zeros. Returns the new handles by the old names, and the ops that initialize them."""
    handles, initial = {}, []
    # A scope, because an op of the same name would keep one of the step from having its own.
    with tf.name_scope("reprise_variables"):
        for op in resources_of(ops, sources):
            shape, dtype = handle_type(op)
            handle = tf.raw_ops.VarHandleOp(
                dtype=dtype, shape=shape, shared_name=f"reprise/{op.name}"
            )
            value = values.get(op.name)
            if value is None:
                value = np.zeros(shape, dtype.as_numpy_dtype)
            initial.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
            handles[op.outputs[0].name] = handle
    return handles, initial
