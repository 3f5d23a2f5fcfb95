# SPDX-License-Identifier: Apache-2.0
"""Runs the graph of a functional model and lets go of every tensor once its last reader has run.

Keras keeps the output of every layer until the model returns. On torch, where layers run one by
one, no plan could free any of them before. Order, layers and arguments are those of Keras, so the
results are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras

_RUN = "_run_through_graph"


def let_go_early(model: Any) -> None:
    """Makes the functional models in `model`, itself included, let go of tensors early."""
    for graph in _graphs_of(model):
        # Not by the layer's own way, which looks for layers and weights in what it is given.
        object.__setattr__(graph, _RUN, partial(_run, graph, _last_reads(graph)))


def undo(model: Any) -> None:
    """Undoes `let_go_early`."""
    for graph in _graphs_of(model):
        vars(graph).pop(_RUN, None)


def _graphs_of(model: Any) -> Iterator[Any]:
    """Yields the functional graphs of a model; a sequential one has its graph inside."""
    for layer in model._flatten_layers(include_self=True):
        for graph in (layer, getattr(layer, "_functional", None)):
            if isinstance(graph, keras.Model) and hasattr(graph, "_nodes_by_depth"):
                yield graph


def _nodes(graph: Any) -> list[Any]:
    """Returns the nodes of a graph, without its inputs, in the order in which Keras runs them."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth]]
    return [node for node in nodes if node.operation and not node.is_input]


def _last_reads(graph: Any) -> list[tuple[Any, list[int]]]:
    """Returns each node with the ids of the tensors that nobody needs after it."""
    kept = {id(tensor) for tensor in graph.outputs}
    steps: list[tuple[Any, list[int]]] = []
    for node in reversed(_nodes(graph)):
        tensors = (*node.input_tensors, *node.outputs)
        ends = list(dict.fromkeys(id(t) for t in tensors if id(t) not in kept))
        kept.update(ends)
        steps.append((node, ends))
    return steps[::-1]


def _run(
    graph: Any,
    steps: list[tuple[Any, list[int]]],
    inputs: Any,
    operation_fn: Callable[[Any], Any] = lambda operation: operation,
    call_fn: Callable[..., Any] | None = None,
) -> Any:
    """Returns the outputs of the graph for these inputs, in its structure of outputs. `call_fn`
    runs an operation if it is given."""
    given = keras.tree.flatten(inputs)
    found = {id(tensor): value for tensor, value in zip(graph.inputs, given, strict=False)}
    del inputs, given
    for node, ends in steps:
        if all(id(tensor) in found for tensor in node.input_tensors):
            _run_node(graph, node, found, operation_fn, call_fn)
        for key in ends:
            found.pop(key, None)
    missing = [tensor.name for tensor in graph.outputs if id(tensor) not in found]
    if missing:
        raise ValueError(f"{graph.name}: its output {missing[0]} is not connected to the inputs")
    results = [found[id(tensor)] for tensor in graph.outputs]
    return keras.tree.pack_sequence_as(graph._outputs_struct, results)


def _run_node(
    graph: Any,
    node: Any,
    found: dict[int, Any],
    operation_fn: Callable[[Any], Any],
    call_fn: Callable[..., Any] | None,
) -> None:
    args, kwargs = node.arguments.fill_in(found)
    operation = node.operation if call_fn else graph._get_operation_for_node(node)
    run = operation_fn(operation)
    made = call_fn(run, *args, **kwargs) if call_fn else run(*args, **kwargs)
    values = keras.tree.flatten(made)
    found.update((id(t), value) for t, value in zip(node.outputs, values, strict=False))
