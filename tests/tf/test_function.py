# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow 2, with tape and optimizer, under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import reprise
from reprise.tensorflow import applied_to, auto, gradients


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    """These run eagerly, outside of any graph; grappler stays away from their bits."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


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


def test_a_step_with_tape_keeps_its_budget() -> None:
    # Without momentum: what is assigned whole becomes the variable's memory, while records of
    # memory know nothing of what the variable lets go.
    _, step = trained({"budget": "0.5x"}, momentum=False)

    measured, made = step.rehearse(), step.applied

    total = measured.peak_bytes + made.step.graph.static_bytes
    assert total <= made.plan.budget_bytes < made.base.peak_bytes
    assert total == pytest.approx(made.peak_bytes, rel=0.01)


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
    for early in ("check", "rehearse", "validate"):
        with pytest.raises(reprise.RepriseError, match="was not called yet"):
            getattr(auto(training.step, budget="0.5x"), early)()
    with pytest.raises(reprise.InfeasibleBudget, match="Nothing fits"):
        auto(training.step, budget="300KiB")(batch())


def test_what_a_step_returns_and_assigns_is_compared_and_arrives_with_its_peak_in_one_run() -> None:
    from reprise.plan.asking import run_of
    from reprise.plan.server import Server

    training = Training(momentum=False)
    step = auto(training.step, budget="0.5x")
    step(batch())
    before = [weight.numpy().tobytes() for weight in training.weights]

    measured, checked = step.validate(), step.check(batch())

    assert measured.within
    # The loss, and what each weight is given.
    assert (checked.compared, checked.differing) == (9, 0)
    assert [weight.numpy().tobytes() for weight in training.weights] == before
    verdict = Server.find().call("Query/GetRun", {"runId": run_of(step.applied.plan)})["verdict"]
    assert verdict["validated"]
    with pytest.raises(reprise.RepriseError, match=r"newest call; it took float32\(512, 64\)"):
        step.check(batch(3))
