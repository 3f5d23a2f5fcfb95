# SPDX-License-Identifier: Apache-2.0
"""Training steps of TensorFlow graphs: a residual network, a transformer, a U-Net.

Each returns the loss, its variables and what to feed. The same call gives the same bits. The output
of every block is in the graph's collection "checkpoints", for the mode of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorflow as tf

v1 = tf.compat.v1
Net = tuple[Any, list[Any], dict[Any, Any]]


class Variables:
    """Variables with values that a seed decides, in the order they are asked for."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._random = np.random.RandomState(0)

    def __call__(self, *shape: int, scale: float = 0.1) -> Any:
        value = (self._random.randn(*shape) * scale).astype(np.float32)
        self.all.append(tf.Variable(value))
        return self.all[-1]


def _labels(classes: int, shape: list[int]) -> tuple[Any, Any]:
    values = np.arange(int(np.prod(shape))).reshape(shape) % classes
    return v1.placeholder(tf.int32, shape, "labels"), values.astype(np.int32)


def _loss(logits: Any, labels: Any) -> Any:
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def _normed(new: Variables, h: Any, channels: int) -> Any:
    scale = new(channels, scale=0.0) + 1.0
    return v1.nn.fused_batch_norm(h, scale, new(channels, scale=0.0))[0]


def resnet(blocks: int, batch: int = 64, width: int = 16, image: int = 32) -> Net:
    """Residual blocks in three stages for CIFAR-sized images."""
    new = Variables()
    images = v1.placeholder(tf.float32, [batch, image, image, 3], "images")
    labels, label_values = _labels(10, [batch])

    def conv(h: Any, channels: int, out: int, stride: int = 1, size: int = 3) -> Any:
        return tf.nn.conv2d(h, new(size, size, channels, out), stride, "SAME")

    h = tf.nn.relu(_normed(new, conv(images, 3, width), width))
    channels = width
    for block in range(blocks):
        stage = block * 3 // blocks
        out = width << stage
        stride = out // channels
        shortcut = h if stride == 1 else conv(h, channels, out, stride, 1)
        inner = tf.nn.relu(_normed(new, conv(h, channels, out, stride), out))
        h = tf.nn.relu(_normed(new, conv(inner, out, out), out) + shortcut)
        v1.add_to_collection("checkpoints", h)
        channels = out
    logits = tf.matmul(tf.reduce_mean(h, [1, 2]), new(channels, 10))
    pixels = np.random.RandomState(1).randn(batch, image, image, 3).astype(np.float32)
    return _loss(logits, labels), new.all, {images: pixels, labels: label_values}


def transformer(depth: int = 4, batch: int = 8, length: int = 64, width: int = 128) -> Net:
    """Pre-norm blocks of attention and a feed-forward layer over tokens."""
    new = Variables()
    words, heads = 256, 4
    tokens = v1.placeholder(tf.int32, [batch, length], "tokens")
    labels, label_values = _labels(words, [batch, length])

    def norm(h: Any) -> Any:
        mean, variance = tf.nn.moments(h, [-1], keepdims=True)
        scale = new(width, scale=0.0) + 1.0
        return (h - mean) * tf.math.rsqrt(variance + 1e-5) * scale + new(width, scale=0.0)

    def linear(h: Any, size: int, out: int) -> Any:
        flat = tf.matmul(tf.reshape(h, [batch * length, size]), new(size, out))
        return tf.reshape(tf.nn.bias_add(flat, new(out, scale=0.0)), [batch, length, out])

    def split(h: Any) -> Any:
        return tf.transpose(tf.reshape(h, [batch, length, heads, width // heads]), [0, 2, 1, 3])

    h = tf.gather(new(words, width), tokens)
    for _ in range(depth):
        x = norm(h)
        q, k, v = (split(linear(x, width, width)) for _ in range(3))
        weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
        seen = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [batch, length, width])
        h = h + linear(seen, width, width)
        h = h + linear(tf.nn.relu(linear(norm(h), width, 4 * width)), 4 * width, width)
        v1.add_to_collection("checkpoints", h)
    logits = linear(norm(h), width, words)
    drawn = np.random.RandomState(1).randint(0, words, [batch, length]).astype(np.int32)
    return _loss(logits, labels), new.all, {tokens: drawn, labels: label_values}


def unet(depth: int = 3, batch: int = 16, width: int = 16, image: int = 64) -> Net:
    """Convolutions down and up again, with what was on the way down beside what comes up."""
    new = Variables()
    images = v1.placeholder(tf.float32, [batch, image, image, 3], "images")
    labels, label_values = _labels(4, [batch, image, image])

    def double(h: Any, channels: int, out: int) -> Any:
        for size in (channels, out):
            h = tf.nn.conv2d(h, new(3, 3, size, out), 1, "SAME")
            h = tf.nn.relu(_normed(new, h, out))
        v1.add_to_collection("checkpoints", h)
        return h

    h, channels, kept = images, 3, []
    for level in range(depth):
        out = width << level
        h = double(h, channels, out)
        kept.append(h)
        h, channels = tf.nn.max_pool2d(h, 2, 2, "SAME"), out
    h = double(h, channels, channels)
    for level in reversed(range(depth)):
        out = width << level
        size = image >> level
        shape = [batch, size, size, out]
        h = tf.nn.conv2d_transpose(h, new(2, 2, out, channels), shape, 2, "SAME")
        h = double(tf.concat([h, kept[level]], -1), 2 * out, out)
        channels = out
    logits = tf.nn.conv2d(h, new(1, 1, channels, 4), 1, "SAME")
    pixels = np.random.RandomState(1).randn(batch, image, image, 3).astype(np.float32)
    return _loss(logits, labels), new.all, {images: pixels, labels: label_values}


NETS: dict[str, Callable[[], Net]] = {
    "ResNet, 1 block": lambda: resnet(1),
    "ResNet, 3 blocks": lambda: resnet(3),
    "ResNet, 9 blocks": lambda: resnet(9),
    "ResNet, 30 blocks": lambda: resnet(30, batch=32),
    "ResNet, 60 blocks": lambda: resnet(60, batch=32),
    "transformer, 4 blocks": transformer,
    "U-Net, 3 levels": unet,
}
