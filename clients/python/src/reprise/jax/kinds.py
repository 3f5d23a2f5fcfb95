# SPDX-License-Identifier: Apache-2.0
"""What is known of single primitives: which only look at memory, which XLA melts into one loop,
which must run once, what they cost."""

from __future__ import annotations

from math import prod
from typing import Any

from reprise.jax.loops import inner_bodies
from reprise.jax.program import Equation, Program


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# If nothing but the shape changes.
_VIEWS = frozenset(
    {"reshape", "squeeze", "expand_dims", "stop_gradient", "name", "broadcast_in_dim"}
)

# Elementwise, and what moves elements about: they become part of the loop of what reads them.
FUSIBLE = _words(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type
    broadcast_in_dim cbrt ceil clamp concatenate conj convert_element_type copy copy_p cos cosh div
    dynamic_slice eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow iota is_finite le
    lgamma log log1p logistic lt max min mul ne neg nextafter not or pad population_count pow real
    reduce_precision rem rev round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh slice sqrt square sub tan tanh transpose xor"""
)
# What they read can be made in their own loop.
LOOPS = FUSIBLE | _words(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin"
)
_COLLECTIVES = _words(
    """psum psum2 psum_invariant pmax pmin all_gather all_gather_invariant all_to_all ppermute
    reduce_scatter psum_scatter pgather"""
)
_ONCE = _words("pure_callback io_callback debug_callback debug_print ffi_call custom_call infeed")


def is_view(program: Program, equation: Equation) -> bool:
    """Returns True if its one result is the memory of its one input."""
    if len(equation.reads) != 1 or len(equation.writes) != 1 or equation.writes[0] is None:
        return False
    before, after = program.avals[equation.reads[0]], program.avals[equation.writes[0]]
    same = getattr(before, "size", None) == getattr(after, "size", -1)
    return same and equation.name in _VIEWS


def is_remade(equation: Equation, is_result: bool) -> bool:
    """Returns True for what every reader makes for itself: a scalar or a row that is spread, a
    range, another order of axes. XLA makes them in the reader's own loop; a matrix product reads
    its operands in either order. A result in another order of axes has memory of its own."""
    if equation.name == "transpose":
        return not is_result
    return equation.name in ("broadcast_in_dim", "iota") or (
        not equation.reads and equation.name in FUSIBLE
    )


def kind_of(equation: Equation) -> str:
    """Its kind in the step graph."""
    if equation.has_effect or equation.name in _ONCE:
        return "once"
    return "collective" if equation.name in _COLLECTIVES else "pure"


def flops_of(eqn: Any) -> int:
    """Returns about how many operations an equation of JAX is."""
    out = sum(int(getattr(v.aval, "size", 0) or 0) for v in eqn.outvars)
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2 * out * int(prod(shape[d] for d in contracted))
    if name == "conv_general_dilated":
        numbers = eqn.params["dimension_numbers"]
        kernel = eqn.invars[1].aval
        features = int(kernel.shape[numbers.rhs_spec[0]])
        return 2 * out * int(kernel.size) // max(1, features)
    bodies = inner_bodies(eqn)
    if bodies:
        times = int(eqn.params.get("length", 1) or 1)
        return times * sum(flops_of(inner) for body in bodies for inner in body.eqns)
    read = sum(int(getattr(v.aval, "size", 0) or 0) for v in eqn.invars)
    return max(out, read) * (8 if name in _EXPENSIVE else 1)


_EXPENSIVE = _words("exp tanh log logistic erf sin cos pow div sqrt rsqrt")
