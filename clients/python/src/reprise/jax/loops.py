# SPDX-License-Identifier: Apache-2.0
"""A `scan` as its iterations, or as shorter scans, one after the other.

What a loop of the forward stacks for the loop of the backward is never stacked then: each part goes
where it is read, and a plan can give up one and keep the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from reprise.jax.calls import equations_of

__all__ = ["MOST_PARTS", "Pieces", "Span", "joined", "part", "shortened", "spans"]

# A loop becomes no more parts than these: each of them is compiled.
MOST_PARTS = 16

# First iteration of a part, and the first behind it.
Span = tuple[int, int]


@dataclass(slots=True, eq=False)
class Pieces:
    """What the parts of a loop made, by index; put together where somebody wants all."""

    items: list[Any]
    spans: list[Span]
    whole: Any = None


def spans(eqn: Any, room: int, most_parts: int) -> list[Span]:
    """Returns the parts of a scan, by index, that add at most `room` equations; none if it stays as
    it is. A part of one iteration is its body."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return []
    length = int(eqn.params["length"])
    count = min(length, most_parts, 1 + max(0, room) // equations_of(eqn.params["jaxpr"].jaxpr))
    if count < min(2, length) or not length:
        return []
    size = -(-length // count)
    return [(at, min(at + size, length)) for at in range(0, length, size)]


def shortened(eqn: Any, given: list[Any], length: int) -> Any:
    """Returns the jaxpr of a scan over some of its iterations; `given`: the types of what it
    reads."""
    params = {**eqn.params, "length": length}
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in given]
    return jax.make_jaxpr(lambda *args: eqn.primitive.bind(*args, **params))(*shapes)


def part(aval: Any, span: Span) -> Any:
    """Returns the jaxpr that takes some rows of an array; one alone has no axis of rows."""
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    start, stop = span
    if stop - start == 1:
        return jax.make_jaxpr(lambda x: jax.lax.index_in_dim(x, start, keepdims=False))(shape)
    return jax.make_jaxpr(lambda x: jax.lax.slice_in_dim(x, start, stop))(shape)


def joined(avals: list[Any], over: list[Span]) -> Any:
    """Returns the jaxpr that puts the parts of an array together."""
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]

    def whole(*parts: Any) -> Any:
        if all(stop - start == 1 for start, stop in over):
            return jnp.stack(parts)
        rows = [
            x[None] if stop - start == 1 else x
            for x, (start, stop) in zip(parts, over, strict=True)
        ]
        return jnp.concatenate(rows)

    return jax.make_jaxpr(whole)(*shapes)
