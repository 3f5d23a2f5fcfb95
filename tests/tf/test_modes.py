# SPDX-License-Identifier: Apache-2.0
"""The three modes, counted by hand on small graphs, and code that was written for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from bench.tensorflow import nets as large
from tensorflow.python.ops import gradients as ops_gradients
from tests.tf.conftest import ROOT
from tests.tf.nets import FED, chain, perceptron, variable

import reprise
from reprise.plan import evaluate, plan, sweep
from reprise.tensorflow import applied_to, compat, gradients, replace_gradients, validate

v1 = tf.compat.v1
Run = Callable[..., Any]


def again(graph: Any) -> list[str]:
    """The ops that run a second time, in their order."""
    copies = [op for op in graph.get_operations() if "/again" in op.name]
    return [op.name.split("/again")[0] for op in copies]


def test_the_memory_mode_keeps_every_root_of_n_articulation_points(run: Run, graph: Any) -> None:
    y, x, _ = chain(10)

    (found,) = gradients(y, [x], checkpoints="memory")

    # Nine links are all there is at some moment; every third is kept: 2, 5 and 8. The input of the
    # first link is fed. Of each segment the last thing needed is the input of its last link.
    assert again(graph) == [f"link{n}" for n in (6, 7, 3, 4, 0, 1)]
    assert np.array_equal(run([found], {x: FED}).values[0], sin_gradient(10))


def sin_gradient(length: int) -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        y, x, _ = chain(length)
        return session.run(v1.gradients(y, [x])[0], {x: FED})


def test_a_list_of_tensors_keeps_just_them(run: Run, graph: Any) -> None:
    y, x, links = chain(6)

    (found,) = gradients(y, [x], checkpoints=[links[2]])

    assert again(graph) == [f"link{n}" for n in (3, 4, 0, 1)]
    assert np.array_equal(run([found], {x: FED}).values[0], sin_gradient(6))


def test_the_collection_mode_keeps_what_is_in_the_collection(graph: Any) -> None:
    y, x, links = chain(6)
    for link in (1, 3):
        v1.add_to_collection("checkpoints", links[link])

    compat.gradients_collection(y, [x])

    assert again(graph) == ["link4", "link2", "link0"]


def test_the_speed_mode_keeps_matrix_products(run: Run, graph: Any) -> None:
    loss, variables, feed = perceptron(3)

    found = compat.gradients_speed(loss, variables)

    kinds = [graph.get_operation_by_name(name).type for name in again(graph)]
    # A Relu writes over its product: keeping the product is keeping the Relu.
    assert set(kinds) == {"Mul", "Tanh"}
    with tf.Graph().as_default():
        other, weights, fed = perceptron(3)
        expected = run([other, *v1.gradients(other, weights)], fed)
    ran = run([loss, *found], feed)
    assert all(np.array_equal(a, b) for a, b in zip(ran.values, expected.values, strict=True))


def test_the_prediction_of_a_mode_is_what_it_needs(run: Run, graph: Any) -> None:
    loss, variables, feed = perceptron(12)

    found = gradients(loss, variables, checkpoints="memory")
    ran = run([loss, *found], feed, grappler=False)

    made = applied_to(graph)
    static = made.step.graph.static_bytes
    assert ran.peak == pytest.approx(made.peak_bytes - static, rel=0.01)
    assert made.predicted.peak_bytes < made.base.peak_bytes
    # A plan for the same bytes takes no more time.
    answer = plan(made.step.graph, made.predicted.peak_bytes, "tf-graph")
    assert evaluate(made.step.graph, answer.schedule, "tf-graph").time_ns <= made.predicted.time_ns


def test_without_articulation_points_the_memory_mode_is_the_smallest_plan(
    run: Run, graph: Any
) -> None:
    def build() -> Any:
        x = v1.placeholder(tf.float32, [4096], "x")
        a, b = tf.sin(x), tf.cos(x)
        for _ in range(6):
            a, b = tf.sin(a) * b, tf.cos(b) + a
        return tf.reduce_sum(a + b), x

    y, x = build()

    (found,) = gradients(y, [x], checkpoints="memory")

    made = applied_to(graph)
    assert made.predicted.peak_bytes <= made.base.peak_bytes
    assert made.copies > 0
    with tf.Graph().as_default():
        other, fed = build()
        expected = run([v1.gradients(other, [fed])[0]], {fed: FED})
    assert np.array_equal(run([found], {x: FED}).values[0], expected.values[0])


def streams() -> tuple[Any, list[Any]]:
    """Two that need each other all the time, and meet at the end."""
    x = v1.placeholder(tf.float32, [4096], "x")
    a, b = tf.sin(x), tf.cos(x)
    for _ in range(4):
        a, b = tf.sin(a) * b, tf.cos(b) + a
    return tf.reduce_sum(a + b), [x]


def skips() -> tuple[Any, list[Any]]:
    """What goes down is needed on the way up."""
    loss, variables, _ = large.unet(2, batch=8, width=8, image=32)
    return loss, variables


@pytest.mark.parametrize("build", [streams, skips])
def test_where_articulation_points_divide_nothing_no_sweep_finds_a_smaller_plan(
    build: Callable[[], tuple[Any, list[Any]]], graph: Any
) -> None:
    loss, variables = build()

    gradients(loss, variables, checkpoints="memory")

    made = applied_to(graph)
    assert made is not None
    points = [point for point in sweep(made.step.graph, "tf-graph") if point.feasible]
    assert made.predicted.peak_bytes <= min(point.peak_bytes for point in points)


@pytest.mark.parametrize(
    ("checkpoints", "sentence"),
    [
        ("collection", "the collection 'checkpoints' of the graph is empty"),
        ("fast", "must be one of memory, speed, collection or a list of tensors, got 'fast'"),
        ([], "none of its tensors"),
        (3, "checkpoints: must be a mode or a list of tensors, got 3"),
        (["Tanh"], "checkpoints: must be tensors of the graph, got 'Tanh'"),
    ],
)
def test_checkpoints_that_cannot_be_meant_are_refused(checkpoints: Any, sentence: str) -> None:
    y, x, _ = chain(3)

    with pytest.raises(reprise.RepriseError, match=sentence):
        gradients(y, [x], checkpoints=checkpoints)


# ---- Code that was written for the original --------------------------------------


@pytest.fixture
def restored() -> Iterator[None]:
    before = ops_gradients.__dict__["gradients"]
    yield
    ops_gradients.__dict__["gradients"] = before


def losses(build: Callable[[], None]) -> list[float]:
    """Three steps of an optimizer of TensorFlow 1, which asks for gradients itself."""
    with tf.Graph().as_default() as made:
        loss, variables, feed = perceptron(6)
        v1.add_to_collection("checkpoints", made.get_tensor_by_name("Tanh_2:0"))
        step = v1.train.GradientDescentOptimizer(0.5).minimize(loss, var_list=variables)
        build()
        with v1.Session(graph=made) as session:
            session.run(v1.global_variables_initializer())
            return [session.run([loss, step], feed)[0] for _ in range(3)]


@pytest.mark.parametrize("name", ["gradients_memory", "gradients_speed", "gradients_collection"])
def test_the_idiom_of_replacing_the_gradients_of_the_process_works(
    name: str, restored: None
) -> None:
    copies: list[int] = []
    expected = losses(lambda: None)

    ops_gradients.__dict__["gradients"] = getattr(compat, name)
    planned = losses(lambda: copies.append(applied_to(tf.compat.v1.get_default_graph()).copies))

    assert planned == expected
    assert copies[0] > 0


def test_the_idiom_of_assigning_to_the_dict_of_tensorflow_works_at_any_time(
    restored: None,
) -> None:
    before = v1.gradients  # as a program that has asked for gradients already

    try:
        for name in ("gradients_memory", "gradients_speed"):
            v1.__dict__["gradients"] = getattr(compat, name)
            with tf.Graph().as_default() as made:
                loss, variables, _ = perceptron(6)
                v1.gradients(loss, variables)
            assert applied_to(made).copies > 0, name
    finally:
        v1.__dict__["gradients"] = before

    with tf.Graph().as_default() as made:
        loss, variables, _ = perceptron(6)
        v1.gradients(loss, variables)
    assert applied_to(made) is None


ORDERS = [
    "import reprise.tensorflow.compat; import tensorflow.compat.v1 as tf",
    "import tensorflow.compat.v1 as tf; import reprise.tensorflow.compat",
    "import reprise.tensorflow; from tensorflow.compat import v1 as tf",
    "import tensorflow; import reprise.tensorflow; tf = tensorflow.compat.v1",
    "import reprise; import tensorflow.compat.v1 as tf; import reprise.tensorflow",
    "import tensorflow as t; t.compat.v1.gradients; import tensorflow.compat.v1 as tf",
]


ASSIGN = 'tf.__dict__["gradients"] = call'
CALL = 'held = reprise.tensorflow.replace_gradients(checkpoints="memory"); held.__enter__()'


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("looked", "replace"),
    [("", ASSIGN), ("tf.gradients", ASSIGN), ("", CALL)],
    ids=["assigned", "assigned after a look", "replaced"],
)
def test_replaced_gradients_are_seen_in_any_order_of_imports(
    order: str, looked: str, replace: str
) -> None:
    program = f"""
{order}
{looked}
import functools, reprise.tensorflow
call = functools.partial(reprise.tensorflow.gradients, checkpoints="memory")
{replace}
tf.disable_eager_execution()
x = y = tf.placeholder(tf.float32, [64])
for _ in range(8):
    y = tf.sin(y)
tf.gradients(y, [x])
assert reprise.tensorflow.applied_to(tf.get_default_graph()).copies > 0
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "clients/python/src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def penalty(find: Callable[..., Any]) -> tuple[Any, Any]:
    """A gradient penalty: the second gradients are computed through the first."""
    x = v1.placeholder(tf.float32, [64, 32], "x")
    weights = [variable(f"w{layer}", 32, 32) for layer in range(6)]
    h = x
    for weight in weights:
        h = tf.tanh(tf.matmul(h, weight))
    score = tf.reduce_mean(h)
    (slope,) = find(tf.reduce_sum(h), [x])
    loss = score + 10.0 * tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1.0))
    fed = {x: np.random.RandomState(3).randn(64, 32).astype(np.float32)}
    return [loss, *find(loss, weights)], fed


@pytest.mark.parametrize(
    "how",
    [
        *({"budget": "1x"}, {"budget": "0.6x"}),
        *({"checkpoints": "memory"}, {"checkpoints": "speed"}),
    ],
    ids=lambda how: "-".join(how.values()),
)
def test_gradients_of_planned_gradients_have_the_bits_of_plain_ones(
    how: dict[str, Any], run: Run, graph: Any
) -> None:
    with tf.Graph().as_default():
        fetches, fed = penalty(v1.gradients)
        expected = run(fetches, fed, grappler=False)

    fetches, fed = penalty(lambda *args: gradients(*args, **how))

    ran = run(fetches, fed, grappler=False)
    assert all(np.array_equal(a, b) for a, b in zip(ran.values, expected.values, strict=True))
    made = applied_to(graph)
    assert made is not None
    assert not made.others  # it is one step, of one plan
    if "budget" in how:
        assert ran.peak + made.step.graph.static_bytes <= made.plan.budget_bytes


def test_losses_that_share_a_graph_are_promised_nothing_together(graph: Any) -> None:
    """The two of a GAN. A session may run one of them, or both."""
    losses = []
    for name in ("generator", "discriminator"):
        with v1.variable_scope(name):
            losses.append(perceptron(6))
    made = []
    found = []
    for loss, weights, _ in losses:
        found += gradients(loss, weights, budget="0.6x")
        made.append(applied_to(graph))
    feed = {key: value for _, _, fed in losses for key, value in fed.items()}

    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        session.run(found, feed)
        _, measured = validate(session, found, feed)

    for one in made:
        assert "of this loss alone" in one.sentence
        assert "fits" not in one.sentence
        assert "proven" not in one.sentence
    assert "one loss alone" in measured.sentence


def test_a_replacement_without_budget_and_checkpoints_is_refused() -> None:
    with (
        pytest.raises(reprise.RepriseError, match="give either budget= or checkpoints="),
        replace_gradients(),
    ):
        pass


def test_replacing_with_a_budget_ends_with_its_block(restored: None) -> None:
    before = ops_gradients.gradients, v1.gradients, tf.gradients
    expected = losses(lambda: None)

    with replace_gradients(budget="0.5x"):
        planned = losses(lambda: None)

    assert planned == expected
    assert (ops_gradients.gradients, v1.gradients, tf.gradients) == before


def test_the_idiom_of_replacing_the_gradients_of_keras_works(restored: None) -> None:
    # The Keras that TensorFlow still carries is the one for graphs; Keras 3 has no K.gradients.
    from tensorflow.python.keras import backend as K
    from tensorflow.python.keras import layers, models, optimizer_v1

    def weights() -> tuple[list[Any], int]:
        with tf.Graph().as_default() as made, v1.Session(graph=made) as session:
            K.set_session(session)
            start = v1.keras.initializers.RandomNormal(seed=1) if hasattr(v1, "keras") else "ones"
            model = models.Sequential()
            for _ in range(6):
                model.add(layers.Dense(16, activation="tanh", kernel_initializer=start))
            model.build((32, 16))
            model.compile(optimizer_v1.SGD(0.1), "mse")
            x = np.linspace(-1, 1, 32 * 16).reshape(32, 16).astype(np.float32)
            model.fit(x, x[:, ::-1], batch_size=32, epochs=2, verbose=0)
            applied = applied_to(made)
            return model.get_weights(), 0 if applied is None else applied.copies

    before = K.__dict__["gradients"]
    expected, none = weights()
    try:
        K.__dict__["gradients"] = compat.gradients_memory
        planned, copies = weights()
    finally:
        K.__dict__["gradients"] = before

    assert none == 0
    assert copies > 0
    assert all(np.array_equal(a, b) for a, b in zip(expected, planned, strict=True))
