# SPDX-License-Identifier: Apache-2.0
"""What a program asks for, and what it gets where that cannot be: for gradients and for steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.tf.nets import perceptron

import reprise
from reprise.plan.result import Result
from reprise.tensorflow import PlannedFunction, applied_to, auto, gradients, planning
from reprise.tensorflow.captured import constant_bytes

v1 = tf.compat.v1
ROWS, WIDTH = 512, 64


class Graph:
    """Gradients in a graph."""

    def __init__(self) -> None:
        self.graph = tf.Graph()

    def __call__(self, **how: Any) -> list[bytes]:
        """The bits of loss and gradients; without arguments those of a plain program."""
        self.graph = tf.Graph()
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with self.graph.as_default():
            loss, variables, feed = perceptron()
            found = gradients(loss, variables, **how) if how else v1.gradients(loss, variables)
            with v1.Session(config=config) as session:
                session.run(v1.global_variables_initializer())
                return [value.tobytes() for value in session.run([loss, *found], feed)]

    @property
    def applied(self) -> Any:
        return applied_to(self.graph)


class Function:
    """A step of a function, with its update."""

    def __init__(self) -> None:
        self.step: Any = None

    def __call__(self, **how: Any) -> list[bytes]:
        """The bits of two losses and of the weights after them."""
        random = np.random.RandomState(0)
        values = [random.randn(WIDTH, WIDTH).astype(np.float32) * 0.1 for _ in range(8)]
        weights = [tf.Variable(value) for value in values]
        x = tf.constant(random.randn(ROWS, WIDTH).astype(np.float32))

        def train(x: Any) -> Any:
            with tf.GradientTape() as tape:
                h = x
                for weight in weights:
                    h = tf.tanh(tf.nn.relu(tf.matmul(h, weight)) * 0.5)
                loss = tf.reduce_mean(tf.square(h))
            for weight, found in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(0.1 * found)
            return loss

        self.step = auto(train, **how) if how else tf.function(train)
        losses = [self.step(x).numpy().tobytes() for _ in range(2)]
        return losses + [weight.numpy().tobytes() for weight in weights]

    @property
    def applied(self) -> Any:
        return self.step.applied


@pytest.fixture(autouse=True)
def graph() -> None:
    """Functions run eagerly, outside of any graph; graphs are made where they are needed."""


@pytest.fixture(params=[Graph, Function])
def train(request: pytest.FixtureRequest) -> Any:
    return request.param()


def unproven(*_: Any, **__: Any) -> Any:
    raise reprise.InfeasibleBudget("No plan found for 1.0 MiB yet: a plan is known for 1.1 MiB.")


def unanswered(*_: Any, **__: Any) -> Any:
    raise reprise.ServerUnavailable("nobody answers")


def mistaken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("of ours")


# What is asked of the planner, and what is said.
TROUBLES: dict[str, tuple[Any, dict[str, Any], str, type[Exception]]] = {
    "proven": (
        None,
        {"budget": "500KiB"},
        "Nothing fits in 500.0 KiB",
        reprise.InfeasibleBudget,
    ),
    "unproven": (
        unproven,
        {"budget": "0.5x"},
        "No plan found",
        reprise.InfeasibleBudget,
    ),
    "too dear": (
        None,
        {"budget": "0.5x", "max_overhead": 0.0},
        "max_overhead allows +0.0 %",
        reprise.InfeasibleBudget,
    ),
    "no server": (
        unanswered,
        {"budget": "0.5x"},
        "nobody answers",
        reprise.RepriseError,
    ),
    "our mistake": (
        mistaken,
        {"budget": "0.5x"},
        "ZeroDivisionError: of ours",
        ZeroDivisionError,
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_where_there_is_no_plan_the_step_runs_as_written_and_one_line_says_why(
    trouble: str,
    train: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    answer, how, said, _ = TROUBLES[trouble]
    expected = train()
    if answer is not None:
        monkeypatch.setattr(planning, "ask", answer)
    capfd.readouterr()

    found = train(**how)

    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("reprise: ")]
    assert found == expected
    assert train.applied is None
    assert len(lines) == 1
    assert said in lines[0]
    assert lines[0].endswith("Training continues without a plan.")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_where_there_is_no_plan_a_program_may_want_to_be_ended(
    trouble: str, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, how, said, kind = TROUBLES[trouble]
    if answer is not None:
        monkeypatch.setattr(planning, "ask", answer)

    with pytest.raises(kind, match=said.replace("+", r"\+").removeprefix("ZeroDivisionError: ")):
        train(**how, on_infeasible="raise")


def test_the_nearest_budget_is_planned_where_nothing_fits(
    train: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = train()

    assert train(budget="500KiB", on_infeasible="nearest") == expected

    assert train.applied.plan.budget_bytes > 500 << 10
    assert train.applied.peak_bytes <= train.applied.plan.budget_bytes
    assert "the nearest budget" in capfd.readouterr().err


def test_the_environment_switches_it_off_or_has_another_budget(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train()
    monkeypatch.setenv("REPRISE_BUDGET", "0.9x")
    assert train(budget="0.5x") == expected
    assert train.applied.plan.budget == "0.9x"
    monkeypatch.setenv("REPRISE_DISABLE", "1")

    assert train(budget="0.5x") == expected

    assert train.applied is None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"on_infeasible": "stop"},
            "on_infeasible: must be one of raise, nearest, plain",
        ),
        ({"max_overhead": "30%"}, "max_overhead: must be extra time as a fraction"),
        ({"time_limit_s": -1}, "time_limit_s: must be above 0"),
        ({"batch": 0}, "batch: must be an integer above 0"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(
    how: dict[str, Any], said: str, train: Any
) -> None:
    with pytest.raises(reprise.RepriseError, match=said):
        train(budget="0.5x", **how)


def test_a_run_has_the_name_that_it_is_given(train: Any) -> None:
    train(budget="0.5x", name="perceptron")

    assert train.applied.step.graph.name == "perceptron"


# ---- Reports ---------------------------------------------------------------------


def test_a_report_has_what_is_known_from_the_first_step_on() -> None:
    train = Function()
    train(budget="0.5x")

    found = reprise.report(train.step)

    assert isinstance(found, Result)
    assert found.plan is train.applied.plan
    assert 0 < found.predicted_bytes <= found.budget_bytes == found.plan.budget_bytes
    # A plan is rehearsed before it is handed out.
    assert (found.measured_bytes, found.measured_by) == (
        found.predicted_bytes,
        "a rehearsal",
    )
    assert found.overhead is not None
    assert found.bits is None

    train.step.validate()
    train.step.check()

    found = reprise.report(train.step)
    assert found.bits
    assert "was kept. " in str(found)
    assert str(found).endswith("all are equal bit for bit.")


@pytest.mark.parametrize(
    ("how", "said", "budget"),
    [
        ({"budget": "500KiB"}, "Nothing fits in 500.0 KiB", 500 << 10),
        ({"checkpoints": "speed"}, "Checkpoints: peak ", 0),
    ],
)
def test_a_report_without_a_plan_says_what_there_is_instead(
    how: dict[str, Any], said: str, budget: int
) -> None:
    train = Function()
    train(**how)

    found = reprise.report(train.step)

    assert found.sentence.startswith(said)
    assert (found.plan, found.budget_bytes) == (None, budget)


@pytest.mark.parametrize("disabled", ["", "1"])
def test_a_report_before_the_first_step_says_so(
    disabled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_DISABLE", disabled)

    found = reprise.report(auto(lambda x: x, budget="0.5x"))

    assert found.sentence == (
        "Not planned: REPRISE_DISABLE=1 is set." if disabled else "No step has run yet."
    )


# ---- Traces that create variables ------------------------------------------------


class Lazy:
    """A step that creates variables when it is first traced, as optimizers do: all of them, or
    those for the update alone."""

    def __init__(self, weights: bool, nested: bool) -> None:
        values = [np.eye(WIDTH, dtype=np.float32) * 0.9 for _ in range(6)]
        self.weights = [] if weights else [tf.Variable(value) for value in values]
        self.values, self.speeds, self.nested = values, [], nested

    def step(self, x: Any) -> Any:
        if not self.weights:
            self.weights = [tf.Variable(value) for value in self.values]
        with tf.GradientTape() as tape:
            h = x
            for weight in self.weights:
                h = tf.tanh(tf.matmul(h, weight))
            loss = tf.reduce_mean(tf.square(h))
        found = tape.gradient(loss, self.weights)
        if not self.speeds:
            self.speeds = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in self.weights]
        for weight, speed, gradient in zip(self.weights, self.speeds, found, strict=True):
            speed.assign(0.9 * speed + gradient)
            weight.assign_sub(0.1 * speed)
        return loss


def trained(lazy: Lazy, make: Callable[[Any], Any]) -> tuple[list[bytes], Any]:
    x = tf.constant(np.random.RandomState(1).randn(ROWS, WIDTH).astype(np.float32))
    step = make(lazy.step)
    run = tf.function(lambda x: step(x)) if lazy.nested else step
    losses = [run(x).numpy().tobytes() for _ in range(3)]
    return losses + [weight.numpy().tobytes() for weight in lazy.weights], step


@pytest.mark.parametrize("nested", [False, True], ids=["called", "in a function"])
@pytest.mark.parametrize("weights", [False, True], ids=["optimizer", "model"])
def test_a_trace_that_creates_variables_is_left_alone(
    weights: bool, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = trained(Lazy(weights, nested), tf.function)
    planned: list[int] = []
    rewrite = planning.rewrite_step

    def counted(*args: Any) -> Any:
        made = rewrite(*args)
        planned.append(made.step.graph.static_bytes - constant_bytes(made.step.sources))
        return made

    monkeypatch.setattr("reprise.tensorflow.function.rewrite_step", counted)

    found, step = trained(Lazy(weights, nested), lambda call: auto(call, budget="0.7x"))

    assert isinstance(step, PlannedFunction)
    assert found == plain
    # One plan, for weights, their speeds, the input and a few numbers, each once.
    assert len(planned) == 1
    assert planned[0] < (12 * WIDTH * WIDTH + ROWS * WIDTH) * 4 + 256
