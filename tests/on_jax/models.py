# SPDX-License-Identifier: Apache-2.0
"""Everyday training steps, small: each a function and what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bench.jax import nets
from flax import linen

__all__ = ["MODELS", "SCANS"]

Step = tuple[Callable[..., Any], tuple[Any, ...]]
random = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(random.normal(0, 0.05, shape).astype(np.float32))


def of_net(net: Any) -> Step:
    loss, params, data = net
    return jax.value_and_grad(loss), (params, *data)


def lstm_cell(p: Any, c: Any, x: Any) -> Any:
    h, s = c
    i, f, g, o = jnp.split(x @ p["w"] + h @ p["u"] + p["b"], 4, -1)
    s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(s)
    return (h, s), None


def gru_cell(p: Any, h: Any, x: Any) -> Any:
    r, z = jnp.split(jax.nn.sigmoid(x @ p["w"] + h @ p["u"]), 2, -1)
    h = (1 - z) * h + z * jnp.tanh(x @ p["v"] + (r * h) @ p["t"])
    return h, None


def recurrent(cell: Any, params: Any, carry: Any, steps: int, batch: int, width: int) -> Any:
    def net(remat: bool) -> Any:
        def loss(p: Any, x: Any, y: Any) -> Any:
            body = lambda c, x: cell(p, c, x)  # noqa: E731
            c, _ = jax.lax.scan(jax.checkpoint(body) if remat else body, carry, x)
            return ((jax.tree.leaves(c)[0] - y) ** 2).mean()

        return loss, params, (normal(steps, batch, width), normal(batch, width))

    return net


def lstm(steps: int = 12, batch: int = 64, width: int = 32) -> Any:
    params = {"w": normal(width, 4 * width), "u": normal(width, 4 * width), "b": normal(4 * width)}
    zeros = jnp.zeros((batch, width))
    return recurrent(lstm_cell, params, (zeros, zeros), steps, batch, width)


def gru(steps: int = 12, batch: int = 64, width: int = 32) -> Any:
    params = {"w": normal(width, 2 * width), "u": normal(width, 2 * width)}
    params |= {"v": normal(width, width), "t": normal(width, width)}
    return recurrent(gru_cell, params, jnp.zeros((batch, width)), steps, batch, width)


def shared_weight(steps: int = 24, width: int = 64) -> Any:
    """A weight that every iteration reads: its gradient is a sum over all of them."""

    def net(remat: bool) -> Any:
        def loss(p: Any, x: Any) -> Any:
            def body(h: Any, _: Any) -> Any:
                a = jnp.tanh(h @ p["w"] + p["b"])
                return jnp.tanh(a @ p["w"] + h), None

            h, _ = jax.lax.scan(jax.checkpoint(body) if remat else body, x, None, length=steps)
            return (h**2).mean()

        return (loss, {"w": normal(width, width), "b": normal(width)}, (normal(width, width),))

    return net


def elementwise(steps: int = 24, width: int = 64) -> Any:
    """A carry that only goes through loops that XLA fuses."""

    def net(remat: bool) -> Any:
        def loss(p: Any, x: Any) -> Any:
            def body(h: Any, _: Any) -> Any:
                z = jnp.sin(h * p["a"])
                return jnp.tanh((jnp.exp(-z * z) + p["b"]) * h), None

            h, _ = jax.lax.scan(jax.checkpoint(body) if remat else body, x, None, length=steps)
            return (h**2).mean()

        return (loss, {"a": normal(width, width), "b": normal(width)}, (normal(width, width),))

    return net


def two_sums(steps: int = 24, width: int = 64) -> Any:
    """A carry of a state and of a sum over all states."""

    def net(remat: bool) -> Any:
        def loss(p: Any, x: Any) -> Any:
            def body(c: Any, w: Any) -> Any:
                h, s = c
                h = jnp.tanh(h @ w)
                return (h, s + h * h), None

            start = (x, jnp.zeros_like(x))
            (_, s), _ = jax.lax.scan(jax.checkpoint(body) if remat else body, start, p)
            return s.mean()

        return loss, normal(steps, width, width), (normal(4 * width, width),)

    return net


# Each by whether its body is under jax.checkpoint.
SCANS: dict[str, Callable[[bool], Any]] = {
    "lstm": lstm(),
    "gru": gru(),
    "shared_weight": shared_weight(),
    "elementwise": elementwise(),
    "two_sums": two_sums(),
}


def conv(x: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def pool(x: Any) -> Any:
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def cnn() -> Step:
    params = [normal(3, 3, 3, 16), *(normal(3, 3, 16, 16) for _ in range(5))]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for at, kernel in enumerate(params):
            x = jax.nn.relu(conv(x, kernel))
            x = pool(x) if at == 2 else x
        return ((x.mean((1, 2)) - y) ** 2).mean()

    return of_net((loss, params, (normal(16, 16, 16, 3), normal(16, 16))))


def unet() -> Step:
    down = [normal(3, 3, 8, 8) for _ in range(3)]
    up = [normal(3, 3, 16, 8) for _ in range(2)]

    def loss(params: Any, x: Any, y: Any) -> Any:
        skips = []
        for kernel in params[0]:
            x = jax.nn.silu(conv(x, kernel))
            skips.append(x)
            x = pool(x)
        x = skips.pop()
        for kernel in params[1]:
            x = jax.image.resize(x, (*x.shape[:1], *skips[-1].shape[1:3], 8), "nearest")
            x = jax.nn.silu(conv(jnp.concatenate([x, skips.pop()], -1), kernel))
        return ((x - y) ** 2).mean()

    return of_net((loss, (down, up), (normal(8, 32, 32, 8), normal(8, 32, 32, 8))))


def embeddings() -> Step:
    params = {"table": normal(50, 64), "w": [normal(64, 64) for _ in range(6)]}
    tokens = jnp.asarray(random.integers(0, 50, (16, 32)))

    def loss(params: Any, tokens: Any) -> Any:
        x = params["table"][tokens[:, :-1]]
        for w in params["w"]:
            x = x + jax.nn.gelu(x @ w)
        chosen = jax.nn.log_softmax(x @ params["table"].T)
        return -jnp.take_along_axis(chosen, tokens[:, 1:, None], 2).mean()

    return of_net((loss, params, (tokens,)))


def mixed_precision() -> Step:
    loss, params, (x, y) = nets.mlp(8, 64, 512)

    def mixed(params: Any, x: Any, y: Any) -> Any:
        small = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        return loss(small, x.astype(jnp.bfloat16), y).astype(jnp.float32)

    return of_net((mixed, params, (x, y)))


def flax() -> Step:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(5):
                x = x + linen.Dense(64)(linen.relu(linen.Dense(128)(linen.LayerNorm()(x))))
            return (linen.Dense(1)(x) ** 2).mean()

    x, net = normal(256, 64), Net()
    return of_net((lambda p, x: net.apply(p, x), net.init(jax.random.key(0), x), (x,)))


def adam() -> Step:
    loss, params, data = nets.mlp(8, 32, 512)
    optimizer = optax.adam(1e-3)

    def train(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return train, (params, optimizer.init(params), *data)


def two_losses() -> Step:
    def score(params: Any, x: Any) -> Any:
        for w in params:
            x = jnp.tanh(x @ w)
        return x.mean()

    def train(made: Any, judge: Any, z: Any, x: Any) -> Any:
        def fool(made: Any) -> Any:
            out = z
            for w in made:
                out = jnp.tanh(out @ w)
            return -score(judge, out), out

        (one, out), first = jax.value_and_grad(fool, has_aux=True)(made)
        other, second = jax.value_and_grad(lambda j: score(j, out) - score(j, x))(judge)
        down = lambda p, g: p - 0.1 * g  # noqa: E731
        return (jax.tree.map(down, made, first), jax.tree.map(down, judge, second), one, other)

    weights = [normal(48, 48) for _ in range(8)]
    return train, (weights[:4], weights[4:], normal(512, 48), normal(512, 48))


MODELS: dict[str, Callable[[], Step]] = {
    "lstm": lambda: of_net(SCANS["lstm"](False)),
    "gru": lambda: of_net(SCANS["gru"](False)),
    "mlp": lambda: of_net(nets.mlp(8, 64, 512)),
    "cnn": cnn,
    "unet": unet,
    "embeddings": embeddings,
    "transformer": lambda: of_net(nets.transformer(1, 32, 2, 4, 32)),
    "mixed_precision": mixed_precision,
    "flax": flax,
    "adam": adam,
    "scan_of_layers": lambda: of_net(nets.scan(3, 32, 2, 4, 32)),
    "two_losses": two_losses,
}
