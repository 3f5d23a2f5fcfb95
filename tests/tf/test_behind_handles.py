# SPDX-License-Identifier: Apache-2.0
"""Steps whose memory lies behind handles, or in the place of one op: lists of tensors, loops,
conditionals, functions, resources. What is promised of them is kept, or nothing is promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.tf.nets import variable

from reprise.tensorflow import applied_to, check, gradients, validate

v1 = tf.compat.v1
ROWS, WIDTH, TIMES = 128, 64, 8
FED = np.linspace(-1, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
Part = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def control_flow_v2() -> None:
    v1.enable_control_flow_v2()


def loop(h: Any, w: Any) -> Any:
    return tf.while_loop(
        lambda i, _: i < TIMES, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))), (0, h)
    )[1]


def array(h: Any, w: Any) -> Any:
    """A recurrent layer: every state is kept for the program, too."""

    def body(i: Any, h: Any, states: Any) -> Any:
        h = tf.tanh(tf.matmul(h, w))
        return i + 1, h, states.write(i, h)

    states = tf.TensorArray(tf.float32, TIMES, element_shape=[ROWS, WIDTH])
    states = tf.while_loop(lambda i, *_: i < TIMES, body, (0, h, states))[2]
    return tf.reduce_sum(states.stack(), 0)


def cell(h: Any, w: Any) -> Any:
    """Gates, and a sequence that is taken apart by the loop."""
    sequence = tf.stack([h * float(t + 1) for t in range(TIMES)])
    parts = tf.TensorArray(tf.float32, TIMES).unstack(sequence)

    def body(t: Any, h: Any, c: Any) -> Any:
        gates = tf.matmul(parts.read(t) + h, w)
        c = tf.sigmoid(gates) * c + tf.tanh(gates)
        return t + 1, tf.tanh(c) * tf.sigmoid(gates), c

    return tf.while_loop(lambda t, *_: t < TIMES, body, (0, h, tf.zeros_like(h)))[1]


def mapped(h: Any, w: Any) -> Any:
    return tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(w, row)), h)


def scanned(h: Any, w: Any) -> Any:
    sequence = tf.stack([h * float(t + 1) for t in range(TIMES)])
    return tf.scan(lambda a, x: tf.tanh(tf.matmul(a + x, w)), sequence)[-1]


def nested(h: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, loop(h, w)), (0, h))[1]


def ragged(h: Any, w: Any) -> Any:
    rows = tf.RaggedTensor.from_row_lengths(h, [ROWS // 4] * 4)
    done = tf.map_fn(lambda part: tf.tanh(tf.matmul(part, w)), rows)
    return tf.reshape(done.flat_values, [ROWS, WIDTH])


def conditional(h: Any, w: Any) -> Any:
    def deep() -> Any:
        x = h
        for _ in range(TIMES):
            x = tf.tanh(tf.matmul(x, w))
        return x

    return tf.cond(tf.reduce_sum(w) > -1e9, deep, lambda: h)


def function(h: Any, w: Any) -> Any:
    @tf.function
    def inner(x: Any) -> Any:
        for _ in range(TIMES):
            x = tf.tanh(tf.matmul(x, w))
        return x

    return inner(h)


def unrolled(h: Any, w: Any) -> Any:
    """A list that no loop fills."""
    states = tf.TensorArray(tf.float32, TIMES, element_shape=[ROWS, WIDTH])
    for t in range(TIMES):
        h = tf.tanh(tf.matmul(h, w))
        states = states.write(t, h)
    return tf.reduce_sum(states.stack(), 0)


def resource(h: Any, w: Any) -> Any:
    """The arrays of TensorFlow 1 keep what is written in a resource of the session."""
    made = tf.raw_ops.TensorArrayV3(size=TIMES, dtype=tf.float32, element_shape=[ROWS, WIDTH])
    flow = made.flow
    for t in range(TIMES):
        flow = tf.raw_ops.TensorArrayWriteV3(
            handle=made.handle,
            index=t,
            value=tf.stop_gradient(tf.sin(h * float(t))),
            flow_in=flow,
        )
        h = tf.tanh(tf.matmul(h, w))
    kept = tf.raw_ops.TensorArrayGatherV3(
        handle=made.handle, indices=list(range(TIMES)), flow_in=flow, dtype=tf.float32
    )
    return h + tf.stop_gradient(tf.reduce_sum(kept, 0))


KINDS = [
    *(
        loop,
        array,
        cell,
        mapped,
        scanned,
        nested,
        ragged,
        conditional,
        function,
        unrolled,
    ),
    resource,
]


def build(part: Part) -> tuple[Any, list[Any], dict[Any, Any]]:
    """Plain layers around it, so that there is something to plan."""
    x = v1.placeholder(tf.float32, [ROWS, WIDTH], "x")
    weights = [variable(f"w{layer}", WIDTH, WIDTH) for layer in range(6)]
    h = x
    for at, weight in enumerate(weights):
        h = part(h, weight) if at in (1, 4) else tf.tanh(tf.nn.relu(tf.matmul(h, weight)) * 0.5)
    return tf.reduce_mean(tf.square(h)), weights, {x: FED}


@pytest.mark.parametrize("part", KINDS)
@pytest.mark.parametrize("budget", ["1x", "0.8x", "0.6x"])
def test_what_is_promised_is_measured_and_every_bit_is_kept(
    part: Part, budget: str, run: Any, graph: Any
) -> None:
    with tf.Graph().as_default():
        loss, weights, feed = build(part)
        expected = run([loss, *v1.gradients(loss, weights)], feed, grappler=False)
    loss, weights, feed = build(part)

    found = gradients(loss, weights, budget=budget)

    ran = run([loss, *found], feed, grappler=False)
    assert all(np.array_equal(a, b) for a, b in zip(ran.values, expected.values, strict=True))
    made = applied_to(graph)
    if made is None:
        return  # said, and trained without a plan
    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        session.run([loss, *found], feed)
        _, measured = validate(session, [loss, *found], feed)
        checked = check(session, feed)
    assert measured.measured_bytes <= measured.budget_bytes, measured.sentence
    # What ends in the same microsecond may be freed before or after.
    assert measured.measured_bytes == pytest.approx(measured.predicted_bytes, rel=0.05)
    assert checked.bits
    walked = made.predicted.peak_bytes
    if abs(made.peak_bytes - walked) > 0.001 * walked:
        assert "proven" not in made.sentence.replace("not proven", "")
        assert not made.plan.proven_optimal


@pytest.mark.parametrize("part", KINDS)
def test_a_refusal_of_what_its_ops_do_not_show_claims_no_proof(
    part: Part, graph: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    loss, weights, _ = build(part)

    gradients(loss, weights, budget="0.05x")

    said = capfd.readouterr().err
    assert applied_to(graph) is None
    assert said.count("Training continues without a plan.") == 1
    if part is not unrolled:  # of which every op is one of the step
        assert "(an estimate: loops, conditionals and functions are one op each, or it " in said
