# SPDX-License-Identifier: Apache-2.0
"""Ops that write over an input: TensorFlow does so where the prediction of a peak says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tests.tf.nets import variable

from reprise.tensorflow import applied_to, gradients, validate
from reprise.tensorflow.kinds import FORWARDING, FORWARDING_SECOND
from reprise.tensorflow.trace import run_traced

v1 = tf.compat.v1
ROWS, COLUMNS = 512, 64
OFF = v1.ConfigProto()
OFF.graph_options.rewrite_options.disable_meta_optimizer = True
# What ops are called with that take more than tensors named x or x and y.
SPECIAL: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "AddN": lambda t, other: {"inputs": [t, other]},
    "BiasAdd": lambda t, other: {"value": t, "bias": other[0]},
    "BiasAddV1": lambda t, other: {"value": t, "bias": other[0]},
    "ClipByValue": lambda t, other: {"t": t, "clip_value_min": 0.1, "clip_value_max": 0.5},
    "MatrixBandPart": lambda t, other: {"input": t, "num_lower": 1, "num_upper": 1},
    "SelectV2": lambda t, other: {"condition": other > 0, "t": t, "e": other},
    "SoftmaxCrossEntropyWithLogits": lambda t, other: {"features": t, "labels": other},
    "SparseSoftmaxCrossEntropyWithLogits": lambda t, other: {
        "features": t,
        "labels": tf.zeros([ROWS], tf.int32),
    },
}


def made(name: str, tensor: Any, other: Any) -> Any:
    """An op of this type over a tensor that nothing else reads."""
    function = getattr(tf.raw_ops, name)
    if name in SPECIAL:
        return function(**SPECIAL[name](tensor, other))
    wanted = [argument.name for argument in op_def_registry.get(name).input_arg]
    return function(**dict(zip(wanted, (tensor, other), strict=False)))


def test_every_op_that_is_said_to_write_over_its_input_does(graph: Any) -> None:
    fed = v1.placeholder(tf.float32, [ROWS, COLUMNS], "fed")
    other = tf.constant(np.full([ROWS, COLUMNS], 0.5, np.float32))
    ops = {}
    for name in sorted(FORWARDING | FORWARDING_SECOND):
        if name in ("Cast", "TruncateDiv"):
            continue  # a cast to the same type returns its input; the other one is of integers
        out = made(name, tf.raw_ops.Square(x=fed), other)
        ops[name] = (out if tf.is_tensor(out) else out[0]).op
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1

    with v1.Session(graph=graph, config=config) as session:
        values = {fed: np.full([ROWS, COLUMNS], 0.25, np.float32)}
        _, metadata = run_traced(session, list(ops.values()), values)

    largest = {
        node.node_name: max(
            (r.alloc_bytes for memory in node.memory for r in memory.allocation_records), default=0
        )
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    allocating = [name for name, op in ops.items() if largest[op.name] >= ROWS * COLUMNS * 4]
    assert allocating == []


def parts(h: Any, weights: list[Any]) -> Any:
    """Rows of a tensor, each of which goes through a product of its own."""
    return tf.concat([tf.matmul(part, weights[0]) for part in tf.split(h, 4, axis=0)], 0)


def same(h: Any, weights: list[Any]) -> Any:
    """Two tensors that go through an op together, as gradients do before an update."""
    one, other = tf.identity_n([tf.sin(h), tf.cos(h)])
    return tf.matmul(one + other, weights[0])


@pytest.mark.parametrize("budget", ["1x", "0.7x"])
@pytest.mark.parametrize("between", [parts, same])
def test_a_tensor_that_shares_the_memory_of_another_is_not_counted(
    graph: Any, between: Callable[[Any, list[Any]], Any], budget: str
) -> None:
    h = x = v1.placeholder(tf.float32, [ROWS, COLUMNS], "x")
    weights = [variable(f"w{layer}", COLUMNS, COLUMNS) for layer in range(6)]
    for weight in weights:
        h = between(tf.tanh(tf.matmul(h, weight)), weights)
    loss = tf.reduce_mean(tf.square(h))
    plain = tf.gradients(loss, weights)
    values = {x: np.linspace(-1, 1, ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)}
    with v1.Session(config=OFF) as session:
        session.run(v1.global_variables_initializer())
        expected = session.run(plain, values)

    found = gradients(loss, weights, budget=budget)

    sharing = {graph.get_tensor_by_name(name).op.type for name in applied_to(graph).step.views}
    assert sharing & {"Split", "IdentityN"}
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(found, values)
        fetched, measured = validate(session, [loss, *found], values)
    assert measured.measured_bytes <= measured.budget_bytes
    assert measured.measured_bytes == pytest.approx(measured.predicted_bytes, rel=0.01)
    assert all(np.array_equal(a, b) for a, b in zip(expected, fetched[1:], strict=True))


def test_a_peak_at_the_cross_entropy_is_predicted(graph: Any) -> None:
    # Its logits are the largest tensor of the step, and their gradient takes over their memory.
    x = v1.placeholder(tf.float32, [256, 16], "x")
    labels = v1.placeholder(tf.int32, [256], "labels")
    weights = [variable("w0", 16, 16), variable("w1", 16, 1024)]
    logits = tf.matmul(tf.tanh(tf.matmul(x, weights[0])), weights[1])
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    found = gradients(loss, weights, budget="1x")
    feed = {x: np.ones([256, 16], np.float32), labels: np.zeros([256], np.int32)}

    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with v1.Session(graph=graph, config=config) as session:
        session.run(v1.global_variables_initializer())
        session.run([loss, *found], feed)
        _, verdict = validate(session, [loss, *found], feed)

    applied = applied_to(graph)
    assert applied is not None
    assert applied.peak_bytes < applied.predicted.peak_bytes
    # The logits' megabyte is there once.
    assert verdict.measured_bytes == applied.peak_bytes


def test_logits_that_a_metric_reads_are_counted_beside_their_gradient(graph: Any) -> None:
    x = v1.placeholder(tf.float32, [256, 16], "x")
    labels = v1.placeholder(tf.int64, [256], "labels")
    weight = variable("w", 16, 1024)
    logits = tf.matmul(x, weight)
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    found = gradients(loss, [weight], budget="1x")
    feed = {x: np.ones([256, 16], np.float32), labels: np.zeros([256], np.int64)}

    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        session.run([loss, right, *found], feed)
        _, verdict = validate(session, [loss, right, *found], feed)

    applied = applied_to(graph)
    assert applied is not None
    assert applied.peak_bytes == applied.predicted.peak_bytes
    # The metric may hold them longer than the plan knows, and has a few kilobytes of its own.
    assert verdict.measured_bytes <= applied.peak_bytes + 128 * 1024
