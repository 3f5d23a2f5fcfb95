# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow 2, with tape and optimizer, under a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tests.tf.test_behind_handles import FED, array

import reprise
from reprise.tensorflow import applied_to, auto, gradients
from reprise.tensorflow.captured import constant_bytes


@pytest.fixture(autouse=True)
def graph() -> None:
    """These run eagerly, outside of any graph."""


WIDTH, BATCH = 64, 512


class Training:
    """A perceptron, with momentum or plain; the same call makes the same bits."""

    def __init__(self, momentum: bool = True) -> None:
        self.momentum = momentum
        random = np.random.RandomState(0)
        values = [random.randn(WIDTH, WIDTH).astype(np.float32) * 0.1 for _ in range(8)]
        self.weights = [tf.Variable(value) for value in values]
        self.speeds = [tf.Variable(tf.zeros_like(weight)) for weight in self.weights]

    def step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x
            for weight in self.weights:
                h = tf.tanh(tf.nn.relu(tf.matmul(h, weight)) * 0.5)
            loss = tf.reduce_mean(tf.square(h))
        found = tape.gradient(loss, self.weights)
        for weight, speed, gradient in zip(self.weights, self.speeds, found, strict=True):
            if self.momentum:
                speed.assign(0.9 * speed + gradient)
                weight.assign_sub(0.1 * speed)
            else:
                weight.assign_sub(0.1 * gradient)
        return loss


def batch(rows: int = BATCH) -> Any:
    return tf.constant(np.random.RandomState(1).randn(rows, WIDTH).astype(np.float32))


def trained(how: dict[str, Any] | None, momentum: bool = True) -> tuple[list[bytes], Any]:
    """The bits of three losses and of the weights after them, and the planned step."""
    training = Training(momentum)
    step = auto(training.step, **how) if how else tf.function(training.step)
    losses = [step(batch()).numpy().tobytes() for _ in range(3)]
    return losses + [weight.numpy().tobytes() for weight in training.weights], step


def test_a_step_with_tape_and_optimizer_keeps_every_bit() -> None:
    plain, _ = trained(None)

    planned, step = trained({"budget": "0.5x"})

    assert planned == plain
    assert step.applied.copies > 0


@pytest.mark.parametrize("momentum", [False, True], ids=["in place", "assigned whole"])
def test_a_step_with_tape_keeps_its_budget(momentum: bool) -> None:
    # What is assigned whole becomes the variable's memory, and the old one is let go.
    _, step = trained({"budget": "0.5x"}, momentum=momentum)

    total, made = step.validate().measured_bytes, step.applied

    assert total <= made.plan.budget_bytes < made.base.peak_bytes
    assert total == pytest.approx(made.peak_bytes, rel=0.01)


def test_a_variable_that_is_read_several_times_counts_once() -> None:
    # Eight weights and their speeds are read by the forward, by the backward and by the update.
    _, step = trained({"budget": "0.5x"})
    made = step.applied

    variables, inputs = 16 * WIDTH * WIDTH * 4, BATCH * WIDTH * 4

    counted = made.step.graph.static_bytes - constant_bytes(made.step.sources)
    # The loss's own constants are a few numbers.
    assert variables + inputs <= counted < variables + inputs + 256


def looped(how: dict[str, Any] | None) -> tuple[list[bytes], Any]:
    """The bits of three losses of a network with loops, and of the weights after them."""
    weights = [tf.Variable(np.eye(WIDTH, dtype=np.float32) * 0.9) for _ in range(4)]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            h = x
            for at, weight in enumerate(weights):
                h = array(h, weight) if at % 2 else tf.tanh(tf.matmul(h, weight) * 0.5)
            loss = tf.reduce_mean(tf.square(h))
        for weight, found in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * found)
        return loss

    run = auto(step, **how) if how else tf.function(step)
    losses = [run(tf.constant(FED)).numpy().tobytes() for _ in range(3)]
    return losses + [weight.numpy().tobytes() for weight in weights], run


@pytest.mark.parametrize("budget", ["1x", "0.8x", "0.6x"])
def test_a_step_with_loops_keeps_its_budget(budget: str) -> None:
    plain, _ = looped(None)

    planned, step = looped({"budget": budget})

    assert planned == plain
    if step.applied is not None:
        measured = step.validate()
        assert measured.measured_bytes <= measured.budget_bytes


def test_a_mode_works_in_a_function_too() -> None:
    plain, _ = trained(None)

    planned, step = trained({"checkpoints": "speed"})

    assert planned == plain
    assert step.applied.copies > 0


def test_gradients_are_planned_inside_of_a_function_too() -> None:
    training = Training()

    def step(x: Any, find: Any, **how: Any) -> Any:
        h = x
        for weight in training.weights:
            h = tf.tanh(tf.nn.relu(tf.matmul(h, weight)) * 0.5)
        return find(tf.reduce_mean(tf.square(h)), training.weights, **how)

    plain = tf.function(lambda x: step(x, tf.gradients))(batch())
    planned = tf.function(lambda x: step(x, gradients, budget="0.5x"))
    found = planned(batch())

    assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))
    assert applied_to(planned.get_concrete_function(batch()).graph).copies > 0


def test_a_new_shape_is_planned_anew() -> None:
    training = Training()
    step = auto(training.step, budget="0.6x")

    step(batch())
    first = step.applied
    step(batch())
    same = step.applied
    step(batch(1024))

    assert same is first
    assert step.applied.peak_bytes > first.peak_bytes


def test_what_cannot_be_planned_is_refused() -> None:
    training = Training()

    with pytest.raises(reprise.RepriseError, match="jit_compile"):
        auto(tf.function(training.step, jit_compile=True), budget="0.5x")
    with pytest.raises(reprise.RepriseError, match="either budget= or checkpoints="):
        auto(training.step)
    with pytest.raises(reprise.RepriseError, match="auto: the step must be a function, got int"):
        auto(3, budget="0.5x")
    for early in ("check", "validate"):
        with pytest.raises(reprise.RepriseError, match="was not called yet"):
            getattr(auto(training.step, budget="0.5x"), early)()
    with pytest.raises(reprise.RepriseError, match='budget "much": does not start'):
        auto(training.step, budget="much")
    with pytest.raises(reprise.RepriseError, match="batch: must be an integer above 0, got -1"):
        auto(training.step, budget="0.5x", batch=-1)
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(reprise.RepriseError, match="functions run eagerly"):
            auto(training.step, budget="0.5x")(batch())
    finally:
        tf.config.run_functions_eagerly(False)
    with pytest.raises(reprise.InfeasibleBudget, match="Nothing fits"):
        auto(training.step, budget="300KiB", on_infeasible="raise")(batch())


def test_what_a_step_returns_and_assigns_is_compared_and_arrives_with_its_peak_in_one_run() -> None:
    from reprise.plan.asking import run_of
    from reprise.plan.server import Server

    training = Training(momentum=False)
    step = auto(training.step, budget="0.5x")
    step(batch())
    before = [weight.numpy().tobytes() for weight in training.weights]

    measured, checked = step.validate(), step.check(batch())

    assert measured.measured_bytes <= measured.budget_bytes
    # The loss, and what each weight is given.
    assert checked.sentence == "9 results were compared: all are equal bit for bit."
    assert [weight.numpy().tobytes() for weight in training.weights] == before
    verdict = Server.find().call("Query/GetRun", {"runId": run_of(step.applied.plan)})["verdict"]
    assert verdict["validated"]
    with pytest.raises(reprise.RepriseError, match=r"newest call; it took float32\(512, 64\)"):
        step.check(batch(3))


# ---- Grappler, which is on as by default -----------------------------------------


def as_run(call: Callable[[], Any]) -> list[set[str]]:
    """The names of the ops of each function that the call made TensorFlow prepare, as they run.
    An inlined op has the names of its callers before its own."""
    running = context.context()
    running.enable_graph_collection()
    try:
        call()
        found = running.export_run_metadata().function_graphs
    finally:
        running.disable_graph_collection()
    return [{node.name for node in each.post_optimization_graph.node} for each in found]


def has(names: set[str], op: str) -> bool:
    return any(name == op or name.endswith("/" + op) for name in names)


def of_the_plan(made: Any) -> set[str]:
    """The names of all ops that the plan runs, copies included."""
    ops = made.step.ops
    copies = [op for op in ops[0].graph.get_operations() if "/again" in op.name]
    return {op.name for op in (*ops, *copies)}


def test_a_planned_function_runs_with_every_op_of_its_plan_and_another_one_is_rewritten() -> None:
    training, x = Training(momentum=False), batch()
    planned, plain = auto(training.step, budget="0.5x"), tf.function(training.step)
    written = {op.name for op in plain.get_concrete_function(x).graph.get_operations()}
    options = context.context().function_call_options.config_proto_serialized

    (ran,) = as_run(lambda: planned(x))
    (rewritten,) = as_run(lambda: plain(x))

    assert of_the_plan(planned.applied) <= ran
    assert not written <= rewritten
    assert context.context().function_call_options.config_proto_serialized == options


@pytest.mark.parametrize("times", [1, 2], ids=["called", "in a loop"])
def test_a_planned_function_inside_of_another_one_keeps_its_plan(times: int) -> None:
    training, plain = Training(momentum=False), Training(momentum=False)
    step = auto(training.step, budget="0.5x")

    def several(x: Any, call: Any) -> Any:
        total = tf.constant(0.0)
        for _ in tf.range(times) if times > 1 else range(1):
            total += call(x)
        return total

    graphs = as_run(lambda: tf.function(several)(batch(), step))
    tf.function(several)(batch(), plain.step)

    named = of_the_plan(step.applied)
    assert any(all(has(names, op) for op in named) for names in graphs)
    for one, other in zip(training.weights, plain.weights, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())


def test_a_session_that_runs_a_planned_function_keeps_its_plan() -> None:
    planned = auto(lambda x: tf.reduce_sum(tf.sin(tf.sin(x))), budget="1x")

    with tf.Graph().as_default() as graph:
        planned(tf.compat.v1.placeholder(tf.float32, [64, 64]))
        with tf.compat.v1.Session(graph=graph) as session:
            assert session._config.graph_options.rewrite_options.disable_meta_optimizer


def test_a_precision_that_grappler_would_lower_is_not_and_that_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    try:
        auto(Training().step, budget="0.5x")(batch())
    finally:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False, **before})

    assert "auto_mixed_precision is a rewrite by Grappler" in capfd.readouterr().err
