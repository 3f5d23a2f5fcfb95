# SPDX-License-Identifier: Apache-2.0
"""Which passes of Grappler change the bits of plain training steps.

    python -m bench.tensorflow.bits

Trains small Keras models without Grappler, with it, with each of its passes alone, and with all but
the two that change bits. Prints, as lines of a table, how many weights then differ in some bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import tensorflow as tf

PASSES = (
    "constant_folding",
    "arithmetic_optimization",
    "remapping",
    "layout_optimizer",
    "dependency_optimization",
    "shape_optimization",
    "loop_optimization",
    "function_optimization",
)
CHANGING = PASSES[:2]
NONE = dict.fromkeys(PASSES, False)
ALL = dict.fromkeys(PASSES, True)


def perceptron() -> Any:
    x = inputs = keras.Input((64,))
    for _ in range(3):
        x = layers.BatchNormalization()(layers.Dense(64)(x))
        x = layers.Dropout(0.1)(layers.Activation("gelu")(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def relus() -> Any:
    x = inputs = keras.Input((64,))
    for _ in range(3):
        x = layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def resnet() -> Any:
    x = inputs = keras.Input((12, 12, 8))
    for _ in range(2):
        h = layers.ReLU()(
            layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))
        )
        h = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(h))
        x = layers.ReLU()(layers.Add()([h, x]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def transformer() -> Any:
    x = inputs = keras.Input((16, 32))
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 16)(h, h)])
        h = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(32)(h)])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def recurrent() -> Any:
    inputs = keras.Input((8, 16))
    return keras.Model(inputs, layers.Dense(10)(layers.LSTM(16)(layers.Dense(16)(inputs))))


def trained(net: Callable[[], Any], options: dict[str, bool]) -> list[bytes]:
    """Returns the bits of the weights after six steps of Adam."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = net()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    random = np.random.default_rng(0)
    x = random.normal(size=(96, *model.input_shape[1:])).astype("float32")
    labels = random.integers(0, 10, 96)
    model.fit(x, labels, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return [weight.tobytes() for weight in model.get_weights()]


def main() -> None:
    ways = {
        "by default": ALL,
        **{f"`{name}` alone": {**NONE, name: True} for name in PASSES},
        "all but the first two": {**ALL, **dict.fromkeys(CHANGING, False)},
    }
    print("| net | " + " | ".join(ways) + " |")
    print("|---" * (len(ways) + 1) + "|")
    for net in (perceptron, relus, resnet, transformer, recurrent):
        without = trained(net, {**ALL, "disable_meta_optimizer": True})
        cells = []
        for options in ways.values():
            found = trained(net, options)
            differing = sum(a != b for a, b in zip(without, found, strict=True))
            cells.append(f"{differing} of {len(found)}" if differing else "equal")
        print(f"| {net.__name__} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
