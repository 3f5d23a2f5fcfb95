# SPDX-License-Identifier: Apache-2.0
"""Everyday training steps of TensorFlow 2, small: each a function and what it is called with.

The same call makes the same bits; what a step returns is its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["MODELS"]

Step = tuple[Callable[..., Any], tuple[Any, ...], list[Any]]
Loss = Callable[..., Any]


class Drawn:
    """Weights and data, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.weights: list[Any] = []
        self._random = np.random.RandomState(0)

    def __call__(self, *shape: int) -> Any:
        return tf.constant(self._random.randn(*shape).astype(np.float32) * 0.1)

    def weight(self, *shape: int) -> Any:
        self.weights.append(tf.Variable(self(*shape)))
        return self.weights[-1]

    def tokens(self, most: int, *shape: int) -> Any:
        return tf.constant(self._random.randint(0, most, shape).astype(np.int32))


def momentum(weights: list[Any], gradients: Any, speeds: list[Any]) -> None:
    for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
        speed.assign(0.9 * speed + tf.convert_to_tensor(gradient))
        weight.assign_sub(0.1 * speed)


def trained(loss: Loss, data: tuple[Any, ...], weights: list[Any], scale: float = 1.0) -> Step:
    """A tape and an optimizer; `scale`: of the loss, for small floats."""
    speeds = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    def step(*data: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(*data)
            scaled = value * scale
        found = tape.gradient(scaled, weights)
        momentum(weights, [tf.convert_to_tensor(g) / scale for g in found], speeds)
        return value

    return step, data, weights + speeds


def perceptron() -> Step:
    new = Drawn()
    layers = [(new.weight(64, 64), new.weight(64)) for _ in range(8)]

    def loss(x: Any, y: Any) -> Any:
        for w, b in layers:
            x = tf.nn.gelu(tf.matmul(x, w) + b)
        return tf.reduce_mean(tf.square(x - y))

    return trained(loss, (new(512, 64), new(512, 64)), new.weights)


def cnn() -> Step:
    new = Drawn()
    kernels = [new.weight(3, 3, 3, 16), *(new.weight(3, 3, 16, 16) for _ in range(7))]
    last = new.weight(16, 10)

    def loss(x: Any, labels: Any) -> Any:
        for at, kernel in enumerate(kernels):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
            x = tf.nn.max_pool2d(x, 2, 2, "SAME") if at == 5 else x
        logits = tf.matmul(tf.reduce_mean(x, [1, 2]), last)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses)

    return trained(loss, (new(32, 32, 32, 3), new.tokens(10, 32)), new.weights)


def unet() -> Step:
    new = Drawn()
    down = [new.weight(3, 3, 8, 8) for _ in range(3)]
    up = [new.weight(3, 3, 16, 8) for _ in range(2)]

    def loss(x: Any, y: Any) -> Any:
        skips = []
        for kernel in down:
            x = tf.nn.silu(tf.nn.conv2d(x, kernel, 1, "SAME"))
            skips.append(x)
            x = tf.nn.max_pool2d(x, 2, 2, "SAME")
        x = skips.pop()
        for kernel in up:
            x = tf.image.resize(x, skips[-1].shape[1:3], "nearest")
            x = tf.concat([x, skips.pop()], -1)
            x = tf.nn.silu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return tf.reduce_mean(tf.square(x - y))

    return trained(loss, (new(8, 32, 32, 8), new(8, 32, 32, 8)), new.weights)


def lstm() -> Step:
    new, times, rows, width = Drawn(), 12, 64, 32
    w, u, b = new.weight(width, 4 * width), new.weight(width, 4 * width), new.weight(4 * width)

    def loss(x: Any, y: Any) -> Any:
        parts = tf.TensorArray(tf.float32, times).unstack(x)

        def body(t: Any, h: Any, c: Any) -> Any:
            gates = tf.matmul(parts.read(t), w) + tf.matmul(h, u) + b
            i, f, g, o = tf.split(gates, 4, -1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            return t + 1, tf.sigmoid(o) * tf.tanh(c), c

        zeros = tf.zeros([rows, width])
        _, h, _ = tf.while_loop(lambda t, *_: t < times, body, (0, zeros, zeros))
        return tf.reduce_mean(tf.square(h - y))

    return trained(loss, (new(times, rows, width), new(rows, width)), new.weights)


def embeddings() -> Step:
    new = Drawn()
    table = new.weight(50, 64)
    layers = [new.weight(64, 64) for _ in range(6)]

    def loss(tokens: Any) -> Any:
        x = tf.gather(table, tokens[:, :-1])
        for w in layers:
            x = x + tf.nn.gelu(tf.einsum("btc,cd->btd", x, w))
        logits = tf.einsum("btc,vc->btv", x, table)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens[:, 1:], logits=logits)
        )

    return trained(loss, (new.tokens(50, 16, 32),), new.weights)


def transformer() -> Step:
    new, width, heads = Drawn(), 32, 2
    blocks = [
        [new.weight(width, size) for size in (width, width, width, width, 4 * width)]
        + [new.weight(4 * width, width)]
        for _ in range(2)
    ]

    def norm(x: Any) -> Any:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [8, 32, heads, width // heads]), [0, 2, 1, 3])

    def loss(x: Any, y: Any) -> Any:
        for q, k, v, out, wide, narrow in blocks:
            h = norm(x)
            a, b, c = (split(tf.tensordot(h, w, 1)) for w in (q, k, v))
            seen = tf.nn.softmax(tf.matmul(a, b, transpose_b=True)) @ c
            x = x + tf.tensordot(tf.reshape(tf.transpose(seen, [0, 2, 1, 3]), x.shape), out, 1)
            x = x + tf.tensordot(tf.nn.relu(tf.tensordot(norm(x), wide, 1)), narrow, 1)
        return tf.reduce_mean(tf.square(x - y))

    return trained(loss, (new(8, 32, width), new(8, 32, width)), new.weights)


def mixed_precision() -> Step:
    new = Drawn()
    layers = [new.weight(64, 64) for _ in range(8)]

    def loss(x: Any, y: Any) -> Any:
        x = tf.cast(x, tf.float16)
        for w in layers:
            x = tf.tanh(tf.matmul(x, tf.cast(w, tf.float16)))
        return tf.reduce_mean(tf.square(tf.cast(x, tf.float32) - y))

    return trained(loss, (new(512, 64), new(512, 64)), new.weights, scale=1024.0)


def gan() -> Step:
    """Two networks, two tapes, two updates in a step."""
    new = Drawn()
    maker, judge = ([new.weight(48, 48) for _ in range(4)] for _ in range(2))
    speeds = [tf.Variable(tf.zeros_like(weight)) for weight in new.weights]

    def through(layers: list[Any], x: Any) -> Any:
        for w in layers:
            x = tf.nn.leaky_relu(tf.matmul(x, w))
        return x

    def step(z: Any, x: Any) -> Any:
        with tf.GradientTape() as one, tf.GradientTape() as other:
            made = through(maker, z)
            false, true = (tf.reduce_mean(through(judge, of)) for of in (made, x))
            fooled, told = -false, false - true
        momentum(maker, one.gradient(fooled, maker), speeds[:4])
        momentum(judge, other.gradient(told, judge), speeds[4:])
        return told

    return step, (new(512, 48), new(512, 48)), new.weights + speeds


MODELS: dict[str, Callable[[], Step]] = {
    made.__name__: made
    for made in (perceptron, cnn, unet, lstm, embeddings, transformer, mixed_precision, gan)
}
