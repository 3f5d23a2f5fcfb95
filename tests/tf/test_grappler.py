# SPDX-License-Identifier: Apache-2.0
"""Grappler, TensorFlow's own optimizer, is on as by default: planned graphs run as they are
planned, and all others as before. Of functions: test_function.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from bench.tensorflow import nets as large
from tests.tf.nets import perceptron

from reprise.tensorflow import applied_to, gradients, validate

v1 = tf.compat.v1
Run = Callable[..., Any]


def grappler_is_on(config: Any) -> bool:
    return not config.graph_options.rewrite_options.disable_meta_optimizer


def transformer() -> Any:
    return large.transformer(2, batch=4, length=32, width=64)


@pytest.mark.parametrize("build", [perceptron, transformer])
def test_a_planned_session_has_the_peak_and_the_bits_of_the_graph_as_it_is_planned(
    build: Any, run: Run, graph: Any
) -> None:
    loss, variables, feed = build()
    found = gradients(loss, variables, budget="0.5x")
    fetches = [loss, *(getattr(gradient, "values", gradient) for gradient in found)]

    on, off = run(fetches, feed), run(fetches, feed, grappler=False)

    made = applied_to(graph)
    assert made is not None
    assert on.peak == off.peak == made.peak_bytes - made.step.graph.static_bytes
    assert all(np.array_equal(a, b) for a, b in zip(on.values, off.values, strict=True))


def test_only_sessions_on_a_planned_graph_are_made_without_grappler(graph: Any) -> None:
    loss, variables, _ = perceptron()
    given = v1.ConfigProto(intra_op_parallelism_threads=1)
    gradients(loss, variables, budget="0.5x")

    with v1.Session(graph=graph, config=given) as planned, v1.Session(graph=tf.Graph()) as other:
        assert not grappler_is_on(planned._config)
        assert planned._config.intra_op_parallelism_threads == 1
        assert grappler_is_on(other._config)
    assert grappler_is_on(given)


@pytest.mark.parametrize("entered", [True, False])
def test_a_session_that_was_made_before_the_plan_and_has_not_run_runs_it_without_grappler(
    entered: bool, graph: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    session = v1.Session(graph=graph, config=v1.ConfigProto(intra_op_parallelism_threads=1))
    with session if entered else nullcontext():
        loss, variables, feed = perceptron()
        found = gradients(loss, variables, budget="0.5x")
        session.run(v1.global_variables_initializer())
        session.run([loss, *found], feed)
        _, measured = validate(session, [loss, *found], feed)

    assert measured.measured_bytes == measured.predicted_bytes
    assert not grappler_is_on(session._config)
    assert session._config.intra_op_parallelism_threads == 1
    assert "Grappler" not in capfd.readouterr().err
    session.close()


def test_a_session_that_has_run_before_the_plan_is_told(
    graph: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with v1.Session(graph=graph) as session:
        session.run(tf.constant(1))
        loss, variables, _ = perceptron()
        gradients(loss, variables, budget="0.5x")

    assert grappler_is_on(session._config)
    assert "a session has run before its graph was planned" in capfd.readouterr().err
