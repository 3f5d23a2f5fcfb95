# SPDX-License-Identifier: Apache-2.0
"""Graphs under a budget: the same bits, the promised bytes, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from bench.tensorflow import nets as large
from tests.tf.nets import perceptron, variable

import reprise
from reprise.tensorflow import applied_to, check, gradients, validate

v1 = tf.compat.v1
Run = Callable[..., Any]


def plain(build: Callable[[], Any], run: Run) -> Any:
    """The step as it is written: what Grappler makes of a graph may have other bits."""
    with tf.Graph().as_default():
        loss, variables, feed = build()
        return run([loss, *dense(v1.gradients(loss, variables))], feed, grappler=False)


def dense(found: list[Any]) -> list[Any]:
    """IndexedSlices as what they are made of."""
    return [
        part
        for gradient in found
        for part in (
            (gradient.values, gradient.indices)
            if isinstance(gradient, tf.IndexedSlices)
            else (gradient,)
        )
    ]


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.values, b.values, strict=True))


@pytest.mark.parametrize(
    ("build", "budget"),
    [
        (perceptron, "0.7x"),
        (perceptron, "0.4x"),
        (lambda: large.resnet(3, batch=128, width=8, image=16), "0.9x"),
        (lambda: large.transformer(2, batch=4, length=32, width=64), "0.5x"),
        (lambda: large.unet(2, batch=32, width=8, image=32), "0.85x"),
    ],
    ids=["perceptron", "perceptron, tight", "resnet", "transformer", "unet"],
)
def test_a_planned_step_keeps_its_budget_its_prediction_and_every_bit(
    build: Any, budget: str, run: Run, graph: Any
) -> None:
    expected = plain(build, run)
    loss, variables, feed = build()

    fetches = [loss, *dense(gradients(loss, variables, budget=budget))]
    ran = run(fetches, feed)

    made = applied_to(graph)
    static = made.step.graph.static_bytes
    assert same(ran, expected)
    assert made.copies > 0
    assert ran.peak + static <= made.plan.budget_bytes
    assert ran.peak < expected.peak
    assert ran.peak == pytest.approx(made.peak_bytes - static, rel=0.01)


def test_every_op_of_a_plan_has_a_control_edge_from_the_one_before_it(graph: Any) -> None:
    loss, variables, _ = perceptron()
    gradients(loss, variables, budget="0.5x")

    made = applied_to(graph)
    assert made is not None
    assert made.plan is not None
    runs = [entry for entry in made.plan.schedule if entry >= 0]
    op, tied = made.rewritten.last, 0
    while op.control_inputs:
        (op,) = op.control_inputs
        tied += 1
    assert tied == len(runs) - 1
    assert op.name == made.step.ops[0].name


def test_a_budget_that_nothing_fits_in_is_refused_and_the_graph_still_works(
    run: Run, graph: Any
) -> None:
    expected = plain(perceptron, run)
    loss, variables, feed = perceptron()

    with pytest.raises(reprise.InfeasibleBudget, match="Nothing fits in") as refusal:
        gradients(loss, variables, budget="200KiB", on_infeasible="raise")

    assert refusal.value.smallest_bytes > 200 << 10
    assert applied_to(graph) is None
    assert same(run([loss, *v1.gradients(loss, variables)], feed, grappler=False), expected)


def test_a_step_that_is_validated_stands_on_the_page_of_its_plan(graph: Any) -> None:
    from reprise.plan.asking import run_of
    from reprise.plan.server import Server

    loss, variables, feed = perceptron()
    found = gradients(loss, variables, budget="0.5x")
    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        session.run([loss, *found], feed)
        _, verdict = validate(session, [loss, *found], feed)

    assert verdict.measured_bytes <= verdict.budget_bytes
    assert "was kept" in verdict.sentence
    run = Server.find().call("Query/GetRun", {"runId": run_of(applied_to(graph).plan)})
    assert run["planId"] == applied_to(graph).plan.plan_id


# ---- Ops that are not like others ------------------------------------------------


def test_random_numbers_are_drawn_once(run: Run, graph: Any) -> None:
    def build() -> Any:
        v1.set_random_seed(3)
        x = v1.placeholder(tf.float32, [512, 64], "x")
        h, weights = x, []
        for layer in range(5):
            weights.append(variable(f"w{layer}", 64, 64))
            h = v1.nn.dropout(tf.tanh(tf.matmul(h, weights[-1])), rate=0.3, seed=layer)
        return tf.reduce_sum(h), weights, {x: np.ones([512, 64], np.float32)}

    expected = plain(build, run)
    loss, variables, feed = build()
    found = gradients(loss, variables, budget="0.8x")

    assert same(run([loss, *found], feed, grappler=False), expected)
    assert applied_to(graph).copies > 0
    again = {op.type for op in graph.get_operations() if "/again" in op.name}
    assert not any("Random" in kind for kind in again)


def test_the_gradient_of_an_embedding_keeps_values_and_rows(run: Run) -> None:
    def build() -> Any:
        ids = v1.placeholder(tf.int32, [512], "ids")
        table = variable("table", 40, 64)
        h, weights = tf.nn.embedding_lookup(table, ids), [table]
        for layer in range(4):
            weights.append(variable(f"w{layer}", 64, 64))
            h = tf.tanh(tf.matmul(h, weights[-1]))
        return tf.reduce_sum(h), weights, {ids: np.arange(512, dtype=np.int32) % 40}

    expected = plain(build, run)
    loss, variables, feed = build()
    found = gradients(loss, variables, budget="0.7x")

    assert isinstance(found[0], tf.IndexedSlices)
    assert same(run([loss, *dense(found)], feed, grappler=False), expected)


def test_variables_that_an_optimizer_changes_in_place_are_read_before(run: Run) -> None:
    def losses(budget: str | None) -> list[float]:
        with tf.Graph().as_default() as made:
            loss, variables, feed = perceptron(use_resource=False)
            options = {"budget": budget} if budget else {}
            found = (gradients if budget else v1.gradients)(loss, variables, **options)
            optimizer = v1.train.GradientDescentOptimizer(0.5)
            step = optimizer.apply_gradients(zip(found, variables, strict=True))
            with v1.Session(graph=made) as session:
                session.run(v1.global_variables_initializer())
                return [session.run([loss, step], feed)[0] for _ in range(4)]

    assert losses("0.4x") == losses(None)


def test_copies_stay_on_the_device_of_their_op(run: Run, graph: Any) -> None:
    def build() -> Any:
        x = v1.placeholder(tf.float32, [512, 64], "x")
        h, weights = x, []
        for layer in range(6):
            with tf.device(f"/cpu:{layer % 2}"):
                weights.append(variable(f"w{layer}", 64, 64))
                h = tf.tanh(tf.matmul(h, weights[-1]))
        return tf.reduce_sum(h), weights, {x: np.ones([512, 64], np.float32)}

    expected = plain(build, run)
    loss, variables, feed = build()
    found = gradients(loss, variables, budget="0.6x")

    copies = [op for op in graph.get_operations() if "/again" in op.name]
    assert copies
    for op in copies:
        assert op.device == graph.get_operation_by_name(op.name.split("/again")[0]).device
    assert same(run([loss, *found], feed, grappler=False), expected)


def test_open_dimensions_need_the_size_to_plan_for(run: Run) -> None:
    def build() -> Any:
        return perceptron(batch=None)

    expected = plain(build, run)
    loss, variables, feed = build()

    with pytest.raises(reprise.RepriseError, match=r"x:0: its shape .* batch="):
        gradients(loss, variables, budget="0.5x", on_infeasible="raise")
    with tf.Graph().as_default():
        loss, variables, feed = build()
        found = gradients(loss, variables, budget="0.5x", batch=512)
        assert same(run([loss, *found], feed, grappler=False), expected)


def test_a_step_that_does_not_run_before_it_is_planned_is_refused_with_the_reason() -> None:
    x = v1.placeholder(tf.float32, [4, 4], "x")
    w = variable("w", 4, 4)
    y = tf.reduce_sum(tf.matmul(v1.check_numerics(tf.math.log(x - 100), "logarithm"), w))

    sentence = "does not run on drawn inputs: logarithm : Tensor had NaN values"
    with pytest.raises(reprise.RepriseError, match=sentence):
        gradients(y, [w], budget="0.9x", on_infeasible="raise")


def test_control_flow_of_tensorflow_1_is_refused_by_name(graph: Any) -> None:
    v1.disable_control_flow_v2()
    try:
        w = variable("w", 4, 4)
        x = tf.ones([4, 4])
        y = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.matmul(h, w)), (0, x))[1]
        with pytest.raises(reprise.RepriseError, match="control flow of TensorFlow 1"):
            gradients(tf.reduce_sum(y), [w], budget="0.9x", on_infeasible="raise")
    finally:
        v1.enable_control_flow_v2()


def test_a_loop_is_one_op(run: Run) -> None:
    def build() -> Any:
        v1.enable_control_flow_v2()
        loss, weights, feed = perceptron(4)
        w = weights[0]
        h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.matmul(h, w)), (0, w))[1]
        return loss + tf.reduce_sum(h), weights, feed

    expected = plain(build, run)
    loss, variables, feed = build()

    found = gradients(loss, variables, budget="0.8x")

    assert same(run([loss, *found], feed, grappler=False), expected)


def test_either_a_budget_or_checkpoints() -> None:
    loss, variables, _ = perceptron(1)

    for options in ({}, {"budget": "1x", "checkpoints": "speed"}):
        with pytest.raises(reprise.RepriseError, match="either budget= or checkpoints="):
            gradients(loss, variables, **options)


# ---- The comparison with the step as it was written ------------------------------


def dropped() -> Any:
    """A step with random numbers, an embedding and an input."""
    ids = v1.placeholder(tf.int32, [512], "ids")
    table = variable("table", 40, 64)
    h, weights = tf.nn.embedding_lookup(table, ids), [table]
    for layer in range(4):
        weights.append(variable(f"w{layer}", 64, 64))
        h = v1.nn.dropout(tf.tanh(tf.matmul(h, weights[-1])), rate=0.3)
    return tf.reduce_sum(h), weights, {ids: np.arange(512, dtype=np.int32) % 40}


def test_steps_and_gradients_of_a_plan_arrive_in_one_run_and_validate_it(graph: Any) -> None:
    from reprise.plan.asking import run_of
    from reprise.plan.server import Server

    loss, variables, feed = dropped()
    found = gradients(loss, variables, budget="0.8x")
    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        session.run([loss, *dense(found)], feed)
        before = session.run(list(variables))
        validate(session, [loss, *dense(found)], feed)
        checked = check(session, feed)
        after = session.run(list(variables))

    # The loss, four weights, and values and rows of the embedding's gradient.
    assert checked.bits
    assert checked.sentence == "7 results were compared: all are equal bit for bit."
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    made = applied_to(graph)
    assert made is not None
    assert made.plan is not None
    run = Server.find().call("Query/GetRun", {"runId": run_of(made.plan)})
    assert run["verdict"]["validated"]
    assert run["verdict"]["gradientsChecked"] == 7


def test_a_gradient_that_is_not_the_one_of_the_step_as_written_is_found(graph: Any) -> None:
    loss, variables, feed = perceptron()
    found = gradients(loss, variables, budget="0.5x")
    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        copy = next(
            op for op in graph.get_operations() if op.type == "Tanh" and "/again" in op.name
        )
        reader = copy.outputs[0].consumers()[0]
        index = [t.name for t in reader.inputs].index(copy.outputs[0].name)
        reader._update_input(index, copy.inputs[0])
        checked = check(session, feed)

    assert checked.bits is False
    _, _, first = checked.sentence.rstrip(".").rpartition(" ")
    assert first in [gradient.name for gradient in found]


def test_what_runs_again_cannot_be_fed(graph: Any) -> None:
    # A copy would compute the value anew, and not see what was fed.
    loss, variables, feed = perceptron()
    found = gradients(loss, variables, budget="0.5x")
    copy = next(op for op in graph.get_operations() if "/again" in op.name)
    first = graph.get_tensor_by_name(copy.name.split("/again")[0] + ":0")

    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        with pytest.raises(ValueError, match="may not be fed"):
            session.run(found, {**feed, first: np.zeros(first.shape, np.float32)})
