# SPDX-License-Identifier: Apache-2.0
"""Equations that are calls: which of them are a part of the program like any other, and how many
equations a body comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["body_of", "equations_of", "inner_bodies"]

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
