# SPDX-License-Identifier: Apache-2.0
"""`fit` on torch: plans are made after some steps, measured and checked while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import reprise
import reprise.keras

WIDTH, BATCH, STEPS = 64, 1024, 8


def layers(count: int) -> list[Any]:
    made = []
    for number in range(count):
        made += [
            keras.layers.Dense(WIDTH),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("gelu"),
            # Seeds of Keras, of which one is given, and those of torch.
            keras.layers.Dropout(0.1, seed=number if number % 2 else None),
        ]
    return made


def functional() -> Any:
    inputs = keras.Input((WIDTH,))
    x = inputs
    for layer in layers(5):
        x = layer(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x + inputs[:, :1]))


def sequential() -> Any:
    """A model in a model."""
    inside = keras.Sequential(layers(4))
    return keras.Sequential([*layers(1), inside, keras.layers.Dense(4)])


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.last = layers(5), keras.layers.Dense(4)

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.inside:
            x = layer(x, training=training) if "dropout" in layer.name else layer(x)
        return self.last(x)


def compiled(make: Any) -> Any:
    keras.utils.set_random_seed(0)
    made = make()
    made.compile("adam", "mse", metrics=["mae"])
    return made


def fit(made: Any, **how: Any) -> dict[str, list[float]]:
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH * STEPS, WIDTH)).astype("float32")
    y = np.tanh(x[:, :4] * 2)
    held_out = (x[:64], y[:64])
    how = {"validation_data": held_out, "epochs": 1, **how}
    return dict(made.fit(x, y, batch_size=BATCH, verbose=0, **how).history)


@pytest.mark.parametrize("make", [functional, sequential, Subclassed])
def test_a_fit_keeps_its_budget_and_the_history_of_a_plain_one_bit_for_bit(
    make: Any, tmp_path: Path
) -> None:
    plain, armed = compiled(make), compiled(make)
    expected = fit(plain)

    reprise.keras.auto(armed, budget="0.7x")
    history = fit(armed)

    assert history == expected
    found = reprise.report(armed)
    assert found.planned_steps >= 2, found
    assert found.predicted_peak_bytes <= found.budget_bytes < found.base_peak_bytes
    assert found.measured_peak_bytes <= found.budget_bytes
    assert (found.validated, found.failed_checks, found.mismatched_steps) == (True, 0, 0)
    assert reprise.keras.report(armed).sentence == found.sentence
    x = np.ones((2, WIDTH), "float32")
    if make is not Subclassed:  # one that does not say how it is made cannot be loaded
        armed.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert np.array_equal(loaded.predict(x, verbose=0), armed.predict(x, verbose=0))
    reprise.keras.remove(armed)
    for layer in armed._flatten_layers(include_self=True):
        assert not {"_reprise_step", "make_train_function", "_run_through_graph"} & set(vars(layer))
    assert fit(armed) == fit(plain)


def test_a_budget_that_nothing_fits_in_trains_without_a_plan_and_says_so() -> None:
    plain, armed = compiled(functional), compiled(functional)
    reprise.keras.auto(armed, budget=1000)

    assert fit(armed) == fit(plain)

    assert "needs at least" in reprise.keras.report(armed).sentence
    assert reprise.report(armed).planned_steps == 0
    assert reprise.report(armed).budget_bytes == 1000


@pytest.mark.parametrize("asked", [{"budget": 1000}, {"budget": "0.5x", "max_overhead": 0.0}])
def test_a_fit_that_is_to_be_ended_where_no_plan_fits_ends(asked: dict[str, Any]) -> None:
    armed = compiled(functional)
    reprise.keras.auto(armed, on_infeasible="raise", **asked)

    with pytest.raises(reprise.InfeasibleBudget):
        fit(armed)


def test_every_step_is_one_of_the_optimizer_of_keras() -> None:
    """Batches by hand, in evaluation mode as after a `fit`, and an optimizer that accumulates."""
    armed, plain = compiled(functional), compiled(functional)
    for made in (armed, plain):
        made.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    reprise.keras.auto(armed, budget="0.7x")
    x, y = np.ones((BATCH, WIDTH), "float32"), np.zeros((BATCH, 4), "float32")

    losses = []
    for made in (armed, plain):
        keras.utils.set_random_seed(0)
        losses.append([made.train_on_batch(x, y) for _ in range(STEPS)])

    assert losses[0] == losses[1]
    assert int(armed.optimizer.iterations) == int(plain.optimizer.iterations)
    assert "apply" not in vars(armed.optimizer)
    assert reprise.report(armed).planned_steps > 0


class Written(keras.callbacks.Callback):
    """Writes down what a callback sees, batch by batch, and changes the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, dict(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch", epoch, dict(logs)))
        self.model.optimizer.learning_rate = 0.0003


def test_callbacks_see_and_do_the_same_in_planned_steps(tmp_path: Path) -> None:
    seen, weights = [], []
    armed = compiled(functional)
    for made in (compiled(functional), armed):
        if made is armed:
            reprise.keras.auto(made, budget="0.7x")
        written = Written()
        file = tmp_path / f"{len(seen)}.weights.h5"
        fit(
            made,
            epochs=3,
            callbacks=[
                written,
                keras.callbacks.ModelCheckpoint(str(file), save_weights_only=True),
                keras.callbacks.EarlyStopping(monitor="val_loss", baseline=0.0, patience=1),
            ],
        )
        seen.append(written.seen)
        made.load_weights(file)
        weights.append([weight.tobytes() for weight in made.get_weights()])

    assert len(seen[0]) > STEPS
    assert seen[0] == seen[1]
    assert weights[0] == weights[1]
    found = reprise.report(armed)
    assert found.planned_steps >= STEPS
    assert found.mismatched_steps == 0


def test_mixed_precision_trains_to_the_same_bits_in_planned_steps() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        plain, armed = compiled(functional), compiled(functional)
        reprise.keras.auto(armed, budget="0.8x")
        expected, history = fit(plain), fit(armed)
    finally:
        keras.config.set_dtype_policy("float32")

    assert history == expected
    found = reprise.report(armed)
    assert found.planned_steps >= 2, found
    assert found.mismatched_steps == 0
    assert found.measured_peak_bytes <= found.budget_bytes


def test_a_model_that_was_loaded_trains_on_to_the_same_bits(tmp_path: Path) -> None:
    histories = []
    armed = compiled(functional)
    for made in (compiled(functional), armed):
        if made is armed:
            reprise.keras.auto(made, budget="0.7x")
        fit(made)
        file = tmp_path / f"{len(histories)}.keras"
        made.save(file)
        loaded = keras.models.load_model(file)
        if made is armed:
            reprise.keras.auto(loaded, budget="0.7x")
        histories.append(fit(loaded))
        planned = reprise.report(loaded).planned_steps if made is armed else 0

    assert histories[0] == histories[1]
    assert planned >= 2
