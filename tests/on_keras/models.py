# SPDX-License-Identifier: Apache-2.0
"""Everyday models of Keras, small: each a compiled model and what it is fitted to.

Data is drawn from the random numbers that `keras.utils.set_random_seed` starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

__all__ = ["BATCH", "MODELS", "STEPS"]

Fitted = tuple[Any, Any, Any]
BATCH, STEPS = 64, 8
ROWS = BATCH * STEPS
BACKEND = keras.backend.backend()


def normal(*shape: int) -> Any:
    return np.random.normal(size=(ROWS, *shape)).astype("float32")


def tokens(most: int, *shape: int) -> Any:
    return np.random.randint(0, most, (ROWS, *shape)).astype("int32")


def through(x: Any, *parts: Any) -> Any:
    for part in parts:
        x = part(x)
    return x


def compiled(model: Any, x: Any, y: Any, loss: Any = "mse") -> Fitted:
    model.compile("adam", loss, jit_compile=BACKEND == "jax")
    return model, x, y


def perceptron() -> Fitted:
    x = inputs = keras.Input((32, 32))
    for _ in range(4):
        x = through(x, layers.Dense(32), layers.LayerNormalization(), layers.Activation("gelu"))
        x = layers.Dropout(0.1, seed=1)(x)
    return compiled(keras.Model(inputs, layers.Dense(4)(x)), normal(32, 32), normal(32, 4))


def residual() -> Fitted:
    x = inputs = keras.Input((8, 8, 8))
    for _ in range(3):
        h = through(x, layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), ops.relu)
        x = x + layers.Conv2D(8, 3, padding="same")(h)
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(keras.Model(inputs, x), normal(8, 8, 8), tokens(10), loss)


def unet() -> Fitted:
    def conv(x: Any) -> Any:
        return layers.Conv2D(8, 3, padding="same", activation="silu")(x)

    x = inputs = keras.Input((16, 16, 4))
    skips = []
    for _ in range(2):
        skips.append(conv(x))
        x = layers.MaxPooling2D()(skips[-1])
    x = conv(x)
    while skips:
        x = conv(layers.Concatenate()([layers.UpSampling2D()(x), skips.pop()]))
    return compiled(keras.Model(inputs, layers.Dense(4)(x)), normal(16, 16, 4), normal(16, 16, 4))


def lstm() -> Fitted:
    both = layers.Bidirectional(layers.LSTM(16, return_sequences=True))
    parts = [both, layers.Dense(16, activation="tanh"), layers.LSTM(16), layers.Dense(4)]
    return compiled(keras.Sequential(parts), normal(8, 16), normal(4))


def embeddings() -> Fitted:
    parts = [layers.Embedding(64, 32), layers.Dropout(0.2, seed=1)]
    parts += [layers.Dense(size, activation="gelu") for size in (64, 32, 64, 32)]
    parts += [layers.GlobalAveragePooling1D(), layers.Dense(1, activation="sigmoid")]
    return compiled(keras.Sequential(parts), tokens(64, 32), tokens(2), "binary_crossentropy")


def transformer() -> Fitted:
    x = inputs = keras.Input((16, 32))
    for _ in range(2):
        h = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 16)(h, h)
        h = through(x, layers.LayerNormalization(), layers.Dense(64, activation="gelu"))
        x = x + layers.Dense(32)(h)
    return compiled(keras.Model(inputs, layers.Dense(4)(x)), normal(16, 32), normal(16, 4))


def mixed_precision() -> Fitted:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return perceptron()
    finally:
        keras.config.set_dtype_policy("float32")


class Sample(layers.Layer):  # type: ignore[misc]
    """Draws around a mean, and adds a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        mean, spread = ops.split(x, 2, -1)
        self.add_loss(0.1 * ops.mean(ops.exp(spread) + mean**2 - spread - 1))
        return mean + ops.exp(0.5 * spread) * keras.random.normal(ops.shape(mean), seed=self.seed)


def autoencoder() -> Fitted:
    """A variational autoencoder, whose middle layer draws."""
    dense = [layers.Dense(size, activation="gelu") for size in (256, 128, 128, 256)]
    made = keras.Sequential([*dense[:2], layers.Dense(32), Sample(), *dense[2:], layers.Dense(256)])
    x = normal(256)
    return compiled(made, x, x)


class OwnStep(keras.Model):  # type: ignore[misc]
    """A step as the guides of Keras write it for each backend."""

    def train_step(self, *given: Any) -> Any:
        return globals()[f"{BACKEND}_step"](self, *given)


def jax_step(self: Any, state: Any, data: Any) -> Any:
    import jax

    weights, others, optimizer, metrics = state

    def loss(weights: Any) -> Any:
        made, now = self.stateless_call(weights, others, data[0], training=True)
        return self.compute_loss(data[0], data[1], made), now

    (value, others), found = jax.value_and_grad(loss, has_aux=True)(weights)
    weights, optimizer = self.optimizer.stateless_apply(optimizer, found, weights)
    return {"loss": value}, (weights, others, optimizer, metrics)


def tensorflow_step(self: Any, data: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = self.compute_loss(data[0], data[1], self(data[0], training=True))
    found = tape.gradient(value, self.trainable_variables)
    self.optimizer.apply(found, self.trainable_variables)
    return {"loss": value}


def torch_step(self: Any, data: Any) -> Any:
    import torch

    value = self.compute_loss(data[0], data[1], self(data[0], training=True))
    self.zero_grad()
    value.backward()
    with torch.no_grad():
        found = [v.value.grad for v in self.trainable_weights]
        self.optimizer.apply(found, self.trainable_weights)
    return {"loss": value}


def own_train_step() -> Fitted:
    x = inputs = keras.Input((32, 32))
    for _ in range(6):
        x = layers.Dense(32, activation="tanh")(x)
    return compiled(OwnStep(inputs, layers.Dense(4)(x)), normal(32, 32), normal(32, 4))


def gan() -> Fitted:
    """Where the gradient turns, a judge that tells apart trains a maker that it cannot."""
    maker, judge = (
        keras.Sequential([layers.Dense(64, activation="leaky_relu") for _ in range(4)])
        for _ in range(2)
    )
    given = [keras.Input((16, 64)), keras.Input((16, 64))]
    made = maker(given[0])
    turned = 2 * ops.stop_gradient(made) - made
    told = keras.Model(given, judge(turned) - judge(given[1]))
    data = [normal(16, 64), normal(16, 64)]
    return compiled(told, data, data[1], lambda _, told: ops.mean(told, -1))


MODELS: dict[str, Callable[[], Fitted]] = {
    made.__name__: made
    for made in (
        *(perceptron, residual, unet, lstm, embeddings, transformer, mixed_precision),
        *(autoencoder, own_train_step, gan),
    )
}
