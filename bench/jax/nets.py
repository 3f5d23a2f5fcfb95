# SPDX-License-Identifier: Apache-2.0
"""Losses of JAX: a perceptron, a transformer, a residual network, a scan over layers and one over
time.

Each function returns a loss, its parameters and its data: `jax.value_and_grad(loss)(params, *data)`
is the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jax
import jax.numpy as jnp

__all__ = ["NETS", "mlp", "resnet", "rnn", "scan", "transformer"]

Net = tuple[Callable[..., Any], Any, tuple[Any, ...]]


def _normal(random: Any, *shape: int) -> Any:
    return jnp.asarray(random.normal(0, 0.05, shape).astype(np.float32))


def mlp(layers: int = 16, width: int = 256, batch: int = 2048) -> Net:
    """Matrix products and tanh."""
    random = np.random.default_rng(0)
    params = [_normal(random, width, width) for _ in range(layers)]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean((x - y) ** 2)

    return loss, params, (_normal(random, batch, width), _normal(random, batch, width))


def _layer_norm(x: Any, gain: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain


def _block(x: Any, w: Any, heads: int) -> Any:
    batch, length, width = x.shape
    split = (batch, length, heads, width // heads)
    h = _layer_norm(x, w["gain"])
    q, k, v = ((h @ w[name]).reshape(split).transpose(0, 2, 1, 3) for name in "qkv")
    scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads), -1)
    x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w["out"]
    return x + jax.nn.gelu(_layer_norm(x, w["gain2"]) @ w["up"]) @ w["down"]


def _block_params(random: Any, width: int) -> dict[str, Any]:
    made = {name: _normal(random, width, width) for name in ("q", "k", "v", "out")}
    made |= {"up": _normal(random, width, 4 * width), "down": _normal(random, 4 * width, width)}
    return made | {"gain": jnp.ones(width), "gain2": jnp.ones(width)}


def transformer(
    depth: int = 6, width: int = 128, heads: int = 4, batch: int = 8, length: int = 128
) -> Net:
    """Attention, layer norm and gelu, block by block."""
    random = np.random.default_rng(0)
    params = [_block_params(random, width) for _ in range(depth)]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for block in params:
            x = _block(x, block, heads)
        return jnp.mean((x - y) ** 2)

    data = _normal(random, batch, length, width), _normal(random, batch, length, width)
    return loss, params, data


def scan(
    depth: int = 12, width: int = 128, heads: int = 4, batch: int = 8, length: int = 128
) -> Net:
    """The same blocks, in one `jax.lax.scan`."""
    random = np.random.default_rng(0)
    blocks = [_block_params(random, width) for _ in range(depth)]
    params = jax.tree.map(lambda *rows: jnp.stack(rows), *blocks)

    def loss(params: Any, x: Any, y: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, block: (_block(x, block, heads), None), x, params)
        return jnp.mean((x - y) ** 2)

    data = _normal(random, batch, length, width), _normal(random, batch, length, width)
    return loss, params, data


def _convolution(x: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def _batch_norm(x: Any, gain: Any) -> Any:
    mean = x.mean((0, 1, 2))
    variance = ((x - mean) ** 2).mean((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain


def resnet(blocks: int = 12, channels: int = 16, batch: int = 32, size: int = 32) -> Net:
    """Residual blocks of two convolutions with batch norm, all of one width."""
    random = np.random.default_rng(0)
    params = [
        {
            "kernel": _normal(random, 3, 3, channels, channels),
            "kernel2": _normal(random, 3, 3, channels, channels),
            "gain": jnp.ones(channels),
            "gain2": jnp.ones(channels),
        }
        for _ in range(blocks)
    ]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for w in params:
            h = jax.nn.relu(_batch_norm(_convolution(x, w["kernel"]), w["gain"]))
            x = jax.nn.relu(x + _batch_norm(_convolution(h, w["kernel2"]), w["gain2"]))
        return jnp.mean((x - y) ** 2)

    shape = (batch, size, size, channels)
    return loss, params, (_normal(random, *shape), _normal(random, *shape))


def rnn(steps: int = 64, width: int = 128, batch: int = 64) -> Net:
    """A recurrent network over a sequence, whose states are compared with another sequence."""
    random = np.random.default_rng(0)
    params = {"in": _normal(random, width, width), "again": _normal(random, width, width)}

    def loss(params: Any, x: Any, y: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ params["in"] + h @ params["again"])
            return h, h

        _, states = jax.lax.scan(cell, jnp.zeros((batch, width)), x)
        return jnp.mean((states - y) ** 2)

    shape = (steps, batch, width)
    return loss, params, (_normal(random, *shape), _normal(random, *shape))


NETS: dict[str, Callable[[], Net]] = {
    "MLP, 16 layers": mlp,
    "transformer, 6 blocks": transformer,
    "ResNet, 12 blocks": resnet,
    "scan, 12 blocks": scan,
    "RNN, 64 steps": rnn,
}
