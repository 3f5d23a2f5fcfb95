# SPDX-License-Identifier: Apache-2.0
"""Small steps of every kind; the same call builds the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
Net = tuple[Any, list[Any], dict[Any, Any]]


def variable(name: str, *shape: int, use_resource: bool = True) -> Any:
    seed = sum(map(ord, name)) % 1000
    value = np.random.RandomState(seed).randn(*shape).astype(np.float32) * 0.1
    return v1.get_variable(name, initializer=value, use_resource=use_resource)


def perceptron(layers: int = 8, batch: int | None = 512, use_resource: bool = True) -> Net:
    width = 64
    x = v1.placeholder(tf.float32, [batch, width], "x")
    h, weights = x, []
    for layer in range(layers):
        weights.append(variable(f"w{layer}", width, width, use_resource=use_resource))
        h = tf.tanh(tf.nn.relu(tf.matmul(h, weights[-1])) * 0.5)
    loss = tf.reduce_mean(tf.square(h))
    values = np.random.RandomState(1).randn(batch or 512, width).astype(np.float32)
    return loss, weights, {x: values}


def chain(length: int) -> tuple[Any, Any, list[Any]]:
    """x, a(x), a(a(x)), ...: every gradient needs the input of its op."""
    x = v1.placeholder(tf.float32, [4096], "x")
    links = [x]
    for link in range(length):
        links.append(tf.sin(links[-1], name=f"link{link}"))
    return links[-1], x, links[1:]


FED = np.linspace(-1, 1, 4096).astype(np.float32)
