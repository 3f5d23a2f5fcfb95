# SPDX-License-Identifier: Apache-2.0
"""A transformer of JAX trained within a budget of memory that XLA confirms.

    python examples/jax_transformer.py --budget 0.5x

The step is a function of parameters, optimizer state and batch; `reprise.jax.auto` is the only line
that differs from a program without Reprise.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp

import reprise.jax
from reprise import RepriseError


def block(x, w, heads):
    batch, length, width = x.shape
    split = (batch, length, heads, width // heads)
    q, k, v = ((x @ w[name]).reshape(split).swapaxes(1, 2) for name in "qkv")
    scores = jax.nn.softmax(q @ k.swapaxes(2, 3) / (width // heads) ** 0.5)
    x = x + (scores @ v).swapaxes(1, 2).reshape(x.shape) @ w["out"]
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def loss(params, tokens):
    x = params["embed"][tokens[:, :-1]]
    for w in params["blocks"]:
        x = block(x, w, heads=4)
    chosen = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.take_along_axis(chosen, tokens[:, 1:, None], axis=2).mean()


def train_step(params, momentum, tokens):
    value, grads = jax.value_and_grad(loss)(params, tokens)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum, value


def initial(depth, width, words):
    keys = iter(jax.random.split(jax.random.key(0), 6 * depth + 1))
    shapes = dict.fromkeys(("q", "k", "v", "out"), (width, width))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    blocks = [
        {name: 0.05 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
        for _ in range(depth)
    ]
    return {"embed": 0.05 * jax.random.normal(next(keys), (words, width)), "blocks": blocks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    params = initial(options.depth, options.width, words=64)
    momentum = jax.tree.map(jnp.zeros_like, params)
    tokens = jax.random.randint(jax.random.key(1), (8, 65), 0, 64)
    step = reprise.jax.auto(train_step, budget=options.budget, donate_argnums=(0, 1))
    try:
        print(reprise.jax.explain(step, params, momentum, tokens))
        for number in range(options.steps):
            params, momentum, value = step(params, momentum, tokens)
            print(f"step {number}: loss {float(value):.4f}")
    except RepriseError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
