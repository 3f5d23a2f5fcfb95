# SPDX-License-Identifier: Apache-2.0
"""A Keras model trained within a budget of memory: one line between `compile` and `fit`.

KERAS_BACKEND=jax python examples/keras_digits.py --budget 0.5x
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import reprise.keras
from reprise import RepriseError


def digits(count: int = 2048) -> tuple[np.ndarray, np.ndarray]:
    """Noisy bars in a 16x16 image; the class is the column of the bar."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 16, count)
    images = random.normal(0, 0.5, (count, 16, 16, 1)).astype("float32")
    images[np.arange(count), :, labels, 0] += 1
    return images, labels


def network(blocks: int) -> keras.Model:
    x = inputs = keras.Input((16, 16, 1))
    x = keras.layers.Conv2D(16, 3, padding="same")(x)
    for _ in range(blocks):
        h = keras.layers.BatchNormalization()(x)
        h = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(h)
        x = keras.layers.Add()([x, h])
    x = keras.layers.GlobalMaxPooling1D()(keras.layers.Reshape((16, 256))(x))
    return keras.Model(inputs, keras.layers.Dense(16)(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()

    model = network(options.blocks)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    try:
        reprise.keras.auto(model, budget=options.budget)
        model.fit(*digits(), batch_size=128, epochs=options.epochs, validation_split=0.1)
    except RepriseError as error:
        raise SystemExit(str(error)) from None
    print(reprise.keras.report(model))


if __name__ == "__main__":
    main()
