# SPDX-License-Identifier: Apache-2.0
"""`fit` of Keras models under budgets: histories, saving, callbacks, refusals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import reprise
import reprise.keras
from reprise.plan.result import Result

SECONDS = 1.0
ROWS, WIDTH = 768, 32
BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    # These passes of Grappler change last bits of plain steps. A planned one is as written.
    tf.config.optimizer.set_experimental_options(
        {"arithmetic_optimization": False, "constant_folding": False}
    )


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, WIDTH)).astype("float32")
    return x, np.tanh(x[:, :4] * 2).astype("float32")


def model(**how: Any) -> Any:
    """Batch norm and dropout have a state of their own."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((WIDTH,))
    for _ in range(2):
        x = keras.layers.Dense(64, activation="tanh")(x)
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.2, seed=1)(x)
    made = keras.Model(inputs, keras.layers.Dense(4)(x))
    jit = BACKEND == "jax"
    made.compile("adam", "mse", metrics=["mae"], jit_compile=jit, **how)
    return made


def fit(made: Any, epochs: int = 1, **how: Any) -> dict[str, list[float]]:
    """The last batch of an epoch is smaller than the others."""
    keras.utils.set_random_seed(0)  # data is shuffled by it
    x, y = data()
    held_out = (x[:100], y[:100])
    return dict(
        made.fit(
            x, y, batch_size=320, epochs=epochs, verbose=0, validation_data=held_out, **how
        ).history
    )


def assert_same(plain: dict[str, list[float]], planned: dict[str, list[float]]) -> None:
    assert plain.keys() == planned.keys()
    for key, values in plain.items():
        if BACKEND == "jax":  # XLA makes other loops of a program in another order
            np.testing.assert_allclose(planned[key], values, rtol=1e-4)
        else:
            assert planned[key] == values


def test_a_fit_within_a_budget_has_the_history_of_a_plain_one_and_is_saved_like_it(
    tmp_path: Path,
) -> None:
    plain, armed = model(), model()
    expected = fit(plain)

    assert reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS) is armed
    history = fit(armed)

    assert_same(expected, history)
    if BACKEND != "torch":  # where the first plan comes after five steps: test_torch.py
        assert any(
            word in reprise.keras.report(armed).sentence for word in ("run again", "It fits in")
        )
    armed.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, _ = data()
    assert np.array_equal(loaded.predict(x, verbose=0), armed.predict(x, verbose=0))
    assert np.array_equal(loaded.optimizer.iterations, armed.optimizer.iterations)


def test_a_loaded_model_is_armed_anew_and_trains_on_alike(tmp_path: Path) -> None:
    trained = model()
    fit(trained)
    trained.save(tmp_path / "model.keras")

    plain, armed = (keras.models.load_model(tmp_path / "model.keras") for _ in range(2))
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)

    assert_same(fit(plain), fit(armed))


def test_the_peak_of_a_planned_step_is_within_the_budget_as_far_as_the_backend_can_say() -> None:
    armed = model()
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)
    if BACKEND == "tensorflow":
        with pytest.raises(reprise.RepriseError, match="no step has run"):
            reprise.keras.measure(armed)
    fit(armed)
    before = [weight.tobytes() for weight in armed.get_weights()]

    if BACKEND == "jax":
        found = vars(armed)["_reprise_step"]._found
        assert found.plan is not None
        assert found.compiled.total <= found.budget_bytes < found.plain.total
    if BACKEND == "tensorflow":
        measured = reprise.keras.measure(armed)
        assert measured.measured_bytes <= measured.budget_bytes, measured.sentence
        assert abs(measured.measured_bytes / measured.predicted_bytes - 1) < 0.02
        assert [weight.tobytes() for weight in armed.get_weights()] == before
    else:
        with pytest.raises(reprise.RepriseError, match=r"report\(model\) has the bytes"):
            reprise.keras.measure(armed)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX and torch: test_run.py")
def test_the_first_step_of_a_plan_is_measured_and_compared_in_the_run_of_the_fit() -> None:
    from reprise.plan.asking import run_of
    from reprise.plan.server import Server

    armed = model()
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)
    fit(armed, epochs=2)

    said = reprise.keras.report(armed).sentence
    assert "Rehearsed with a peak of " in said
    assert said.endswith("all are equal bit for bit.")
    made = vars(armed)["_reprise_step"].planned.applied
    server, run, until = Server.find(), run_of(made.plan), time.monotonic() + 20
    while True:  # the fit does not wait until the daemon has read its last steps
        verdict = server.call("Query/GetRun", {"runId": run})["verdict"]
        if verdict["plannedSteps"] == 6 or time.monotonic() > until:
            break
        time.sleep(0.05)
    measured, predicted = (int(verdict[f"{word}PeakBytes"]) for word in ("measured", "predicted"))
    assert verdict["plannedSteps"] == 6
    assert verdict["validated"]
    assert predicted == made.peak_bytes
    assert 0 < measured <= made.plan.budget_bytes
    assert abs(measured / predicted - 1) < 0.01


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is about TensorFlow's sessions")
def test_a_step_that_cannot_be_run_beside_fit_trains_on_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import reprise.tensorflow.function

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    expected = fit(model())
    armed = model()
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)
    monkeypatch.setattr(reprise.tensorflow.function, "compare", fail)

    assert_same(expected, fit(armed))
    assert "could not be compared beside fit (MemoryError: no room)" in capfd.readouterr().err


def test_a_removed_model_trains_as_before() -> None:
    armed, plain = model(), model()
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)

    reprise.keras.remove(armed)

    assert not [name for name in vars(armed) if name.startswith(("_reprise", "make_train"))]
    assert fit(armed) == fit(plain)
    with pytest.raises(reprise.RepriseError, match="not armed"):
        reprise.keras.report(armed)


def test_a_callback_arms_for_one_fit_and_others_are_called_as_before() -> None:
    armed, seen = model(), []
    budget = reprise.keras.Budget("0.8x", time_limit_s=SECONDS, batch=320)
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )

    history = fit(armed, callbacks=[budget, count])

    assert_same(fit(model()), history)
    assert seen == [0, 1, 2]
    assert budget.sentence
    assert "make_train_function" not in vars(armed)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's optimizer of graphs")
@pytest.mark.parametrize("budget", ["0.8x", "0.6x"])
def test_grappler_does_not_rewrite_a_planned_step(budget: str) -> None:
    # It would merge the ops of this one into a cycle.
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})
    try:
        armed, plain = convolutions(), convolutions()
        reprise.keras.auto(armed, budget=budget, time_limit_s=SECONDS)
        random = np.random.default_rng(0)
        x = random.normal(size=(256, 16, 16, 1)).astype("float32")
        expected, found = (
            made.fit(x, x[:, 0, :, 0], batch_size=128, shuffle=False, verbose=0).history
            for made in (plain, armed)
        )
    finally:
        tf.config.optimizer.set_experimental_options(before)

    assert found == expected
    measured = reprise.keras.measure(armed)
    assert measured.measured_bytes <= measured.budget_bytes


def convolutions() -> Any:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 1))
    x = keras.layers.Conv2D(16, 3, padding="same")(x)
    for _ in range(4):
        h = keras.layers.BatchNormalization()(x)
        h = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(h)
        x = keras.layers.Add()([x, h])
    made = keras.Model(inputs, keras.layers.Dense(16)(keras.layers.GlobalMaxPooling2D()(x)))
    made.compile("adam", "mse")
    return made


@pytest.mark.skipif(BACKEND == "torch", reason="Keras refuses several steps per execution there")
def test_several_steps_per_execution_are_planned_alike() -> None:
    armed, plain = model(steps_per_execution=2), model(steps_per_execution=2)
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)

    assert_same(fit(plain), fit(armed))


def test_mixed_precision_is_planned_alike() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        armed, plain = model(), model()
        reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)
        expected, history = fit(plain), fit(armed)
    finally:
        keras.config.set_dtype_policy("float32")

    if BACKEND == "jax":
        np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-2)
    else:
        assert_same(expected, history)


@pytest.mark.skipif(BACKEND == "torch", reason="plans come after some steps there: test_torch.py")
def test_an_impossible_budget_ends_a_fit_that_is_to_be_ended() -> None:
    armed = model()
    reprise.keras.auto(armed, budget="0.01x", time_limit_s=SECONDS, on_infeasible="raise")

    with pytest.raises(reprise.InfeasibleBudget):
        fit(armed)


def test_a_fit_that_no_plan_fits_is_a_plain_one_and_one_line_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    expected, armed = fit(model()), model()
    reprise.keras.auto(armed, budget=100_000, time_limit_s=SECONDS)
    capfd.readouterr()

    history = fit(armed)

    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("reprise: ")]
    assert_same(expected, history)
    if BACKEND != "torch":  # where it is said after some steps: test_torch.py
        # The last batch of the epoch is smaller, and a step of its own.
        assert 1 <= len(lines) <= 2
        assert all("without a plan" in line for line in lines)
        assert reprise.report(armed).plan is None


@pytest.mark.skipif(BACKEND == "torch", reason="plans come after some steps there: test_torch.py")
def test_the_nearest_budget_is_planned_where_nothing_fits() -> None:
    expected, armed = fit(model()), model()
    reprise.keras.auto(armed, budget="0.3x", time_limit_s=SECONDS, on_infeasible="nearest")

    assert_same(expected, fit(armed))

    found = reprise.report(armed)
    assert found.plan is not None
    assert found.measured_bytes <= found.budget_bytes


def test_the_environment_switches_it_off_or_has_another_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    armed = model()
    monkeypatch.setenv("REPRISE_BUDGET", "0.9x")
    reprise.keras.auto(armed, budget="0.5x", time_limit_s=SECONDS)
    assert vars(armed)["_reprise_step"]._how["budget"] == "0.9x"

    monkeypatch.setenv("REPRISE_DISABLE", "1")

    assert "_reprise_step" not in vars(reprise.keras.auto(model(), budget="0.5x"))


def test_a_report_has_what_every_framework_reports() -> None:
    armed = model()
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)
    assert reprise.report(armed).sentence == "No step has run yet."

    fit(armed)

    found = reprise.report(armed)
    assert isinstance(found, Result)
    assert found.sentence == str(reprise.keras.report(armed))
    if BACKEND != "torch":  # where eight steps are needed: test_torch.py
        assert found.measured_by == {"jax": "XLA", "tensorflow": "a rehearsal"}[BACKEND]
        assert 0 < found.measured_bytes <= found.budget_bytes
        assert found.bits is {"jax": None, "tensorflow": True}[BACKEND]


def recurrent(layer: str) -> Any:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 24))
    for _ in range(2):
        x = getattr(keras.layers, layer)(32, return_sequences=True)(x)
        x = keras.layers.Dense(32, activation="tanh")(x)
    made = keras.Model(inputs, keras.layers.Dense(4)(x))
    made.compile("adam", "mse", jit_compile=BACKEND == "jax")
    return made


@pytest.mark.skipif(BACKEND != "tensorflow", reason="its loops keep what they need behind handles")
@pytest.mark.parametrize("budget", ["1x", "0.85x", "0.5x"])
@pytest.mark.parametrize("layer", ["LSTM", "GRU", "SimpleRNN"])
def test_a_recurrent_model_keeps_its_budget_or_trains_without_a_plan(
    layer: str, budget: str
) -> None:
    x = np.random.default_rng(0).normal(size=(128, 16, 24)).astype("float32")
    y = np.tanh(x[..., :4])
    plain, armed = recurrent(layer), recurrent(layer)
    reprise.keras.auto(armed, budget=budget, time_limit_s=SECONDS)

    expected, found = (
        made.fit(x, y, batch_size=64, shuffle=False, verbose=0).history for made in (plain, armed)
    )

    assert found == expected
    said = reprise.keras.report(armed)
    assert "proven" not in said.sentence.replace("not proven", "")
    if said.plan is not None:
        measured = reprise.keras.measure(armed)
        assert measured.measured_bytes <= measured.budget_bytes, measured.sentence


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow traces a step twice")
def test_the_first_trace_which_creates_the_variables_of_the_optimizer_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import reprise.tensorflow.function as functions

    made, rewrite = [], functions.rewrite_step
    monkeypatch.setattr(
        functions, "rewrite_step", lambda *args: made.append(rewrite(*args)) or made[-1]
    )
    armed = model()
    reprise.keras.auto(armed, budget="0.8x", time_limit_s=SECONDS)
    x, y = data()

    armed.fit(x[:640], y[:640], batch_size=320, epochs=2, verbose=0)

    assert len(made) == 1
    # Each weight is there with its two moments; the batch, and a few numbers.
    weights = sum(int(np.prod(w.shape)) for w in armed.trainable_weights) * 3 * 4
    batch = 320 * (WIDTH + 4) * 4
    assert weights + batch <= made[0].step.graph.static_bytes < 1.2 * (weights + batch)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: "model", "must be a model of Keras"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "between compile"),
        pytest.param(
            lambda: model_that_runs_eagerly(),
            "run_eagerly=False",
            marks=pytest.mark.skipif(BACKEND == "torch", reason="every step is eager there"),
        ),
    ],
    ids=["no model", "not compiled", "eager"],
)
def test_what_cannot_be_armed_is_refused_with_the_remedy(made: Any, said: str) -> None:
    with pytest.raises(reprise.RepriseError, match=said):
        reprise.keras.auto(made(), budget="0.5x")


def model_that_runs_eagerly() -> Any:
    made = keras.Sequential([keras.layers.Dense(1)])
    made.compile("sgd", "mse", run_eagerly=True)
    return made
