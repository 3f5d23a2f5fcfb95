# SPDX-License-Identifier: Apache-2.0
"""A residual network for CIFAR-sized images, as a TensorFlow graph trained within a budget.

    python examples/tensorflow_resnet.py --budget 0.5x
    python examples/tensorflow_resnet.py --checkpoints memory      # or speed, collection

`reprise.tensorflow.gradients` instead of `tf.compat.v1.gradients` is the only line that differs
from a program without Reprise. It prints the measured peak beside the predicted one, and how many
results differ from those of the graph as it was written. Where no plan fits, it says so, and trains
without one.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow as tf

import reprise.tensorflow
from reprise import RepriseError

v1 = tf.compat.v1


def batches(size: int):
    """Noisy bars in images of 32x32 pixels; the class says where the bar is."""
    random = np.random.default_rng(0)
    while True:
        labels = random.integers(0, 10, size).astype(np.int32)
        images = random.normal(0, 0.5, (size, 32, 32, 3)).astype(np.float32)
        images[np.arange(size), :, 3 * labels] += 1
        yield images, labels


def network(images, blocks: int, width: int):
    """Returns the scores of ten classes."""
    random = np.random.default_rng(0)

    def weight(*shape: int):
        scale = (2 / np.prod(shape[:-1])) ** 0.5
        return tf.Variable(random.normal(0, scale, shape).astype(np.float32))

    def conv(x, out: int, stride: int = 1):
        x = tf.nn.conv2d(x, weight(3, 3, x.shape[-1], out), stride, "SAME")
        ones, zeros = tf.Variable(tf.ones([out])), tf.Variable(tf.zeros([out]))
        return v1.nn.fused_batch_norm(x, ones, zeros)[0]

    x = tf.nn.relu(conv(images, width))
    for block in range(blocks):
        out = width << block * 3 // blocks
        stride = out // x.shape[-1]
        shortcut = x if stride == 1 else conv(x, out, stride)
        x = tf.nn.relu(conv(tf.nn.relu(conv(x, out, stride)), out) + shortcut)
        v1.add_to_collection("checkpoints", x)
    return tf.matmul(tf.reduce_mean(x, [1, 2]), weight(x.shape[-1], 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--checkpoints", choices=("memory", "speed", "collection"))
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    v1.disable_eager_execution()
    images = v1.placeholder(tf.float32, [options.batch, 32, 32, 3], "images")
    labels = v1.placeholder(tf.int32, [options.batch], "labels")
    scores = network(images, options.blocks, options.width)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    )
    variables = v1.trainable_variables()
    budget = None if options.checkpoints else options.budget
    try:
        gradients = reprise.tensorflow.gradients(
            loss, variables, budget=budget, checkpoints=options.checkpoints
        )
    except RepriseError as error:
        raise SystemExit(str(error)) from None
    train = v1.train.GradientDescentOptimizer(0.05).apply_gradients(
        zip(gradients, variables, strict=True)
    )
    applied = reprise.tensorflow.applied_to(loss.graph)
    if applied:
        print(applied.sentence)

    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        data = batches(options.batch)
        for step in range(options.steps):
            pixels, classes = next(data)
            feed = {images: pixels, labels: classes}
            value, _ = session.run([loss, train], feed)
            print(f"step {step}: loss {value:.4f}")
        if applied:
            _, measured = reprise.tensorflow.validate(session, [loss, *gradients], feed)
            print(measured.sentence)
            print(reprise.tensorflow.check(session, feed).sentence)


if __name__ == "__main__":
    main()
