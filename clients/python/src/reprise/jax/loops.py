# SPDX-License-Identifier: Apache-2.0
"""Equations with a body: calls, which are a part of the program like any other, and a `scan` as its
iterations, or as shorter scans, one after the other.

What a loop of the forward stacks for the loop of the backward is never stacked then: each part goes
where it is read, and a plan can give up one and keep the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

# Primitive -> where the body is.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
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


def body_of(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Returns the body of a call that may be inlined, and its constants; None for everything else.
    A call that says where its arrays lie stays one equation."""
    key = _CALLS.get(eqn.primitive.name)
    if key is None or key not in eqn.params:
        return None
    for name in ("in_shardings", "out_shardings"):
        if any(type(s).__name__ != "UnspecifiedValue" for s in eqn.params.get(name, ())):
            return None
    body = eqn.params[key]
    return (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())


def inner_bodies(eqn: Any) -> list[Any]:
    """Returns the open jaxprs among the parameters of an equation."""
    found = []
    for value in eqn.params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            body = getattr(one, "jaxpr", one)
            if hasattr(body, "eqns"):
                found.append(body)
    return found


def equations_of(jaxpr: Any) -> int:
    """Returns how many equations a body is once its calls are inlined."""
    count = 0
    for eqn in jaxpr.eqns:
        body = body_of(eqn)
        count += 1 if body is None else equations_of(body[0])
    return count
