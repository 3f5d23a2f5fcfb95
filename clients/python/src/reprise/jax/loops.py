# SPDX-License-Identifier: Apache-2.0
"""A `scan` as its iterations, one after the other.

What a loop of the forward stacks for the loop of the backward is never stacked then: each
iteration's piece goes where it is read, and a plan can give up one and keep the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from reprise.jax.calls import equations_of

__all__ = ["Pieces", "added_by", "is_open", "iterations", "row", "stacked"]


@dataclass(slots=True, eq=False)
class Pieces:
    """What the iterations of a loop made, by index; put together where somebody wants all."""

    items: list[Any]
    whole: Any = None


def is_open(eqn: Any, room: int) -> bool:
    """Returns True for a scan without effects whose iterations add at most `room` equations."""
    if eqn.primitive.name != "scan" or eqn.effects:
        return False
    return int(eqn.params["length"]) > 0 and added_by(eqn) <= room


def added_by(eqn: Any) -> int:
    """Returns how many equations a scan adds when it is opened."""
    return (int(eqn.params["length"]) - 1) * equations_of(eqn.params["jaxpr"].jaxpr)


def iterations(eqn: Any) -> range:
    """Returns the indices of a scan in the order in which it runs."""
    indices = range(int(eqn.params["length"]))
    return indices[::-1] if eqn.params["reverse"] else indices


def row(aval: Any, index: int) -> Any:
    """Returns the jaxpr that takes one row of an array."""
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return jax.make_jaxpr(lambda x: jax.lax.index_in_dim(x, index, keepdims=False))(shape)


def stacked(avals: list[Any]) -> Any:
    """Returns the jaxpr that puts rows together."""
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *rows: jnp.stack(rows))(*shapes)
