# SPDX-License-Identifier: Apache-2.0
"""A traced function as one list of equations: calls inlined, loops opened, dead code removed.

Values are numbers. Each equation keeps the equation of JAX that it came from, and `Equation.run`
binds it again through `jax.extend.core.jaxpr_as_fun`, so that no private field of a primitive has
to be known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from reprise.jax.loops import (
    MOST_PARTS,
    Pieces,
    Span,
    body_of,
    equations_of,
    joined,
    part,
    shortened,
    spans,
)


@dataclass(slots=True, eq=False)
class Equation:
    """One primitive of the program."""

    eqn: Any
    # Values, literals left out, each once; `writes` has None for what nobody reads.
    reads: list[int]
    writes: list[int | None]
    # Calls the primitive: the values of `reads` in, those of `writes` out.
    run: Callable[..., list[Any]]
    # The name scope that the program was in, calls around it included.
    scope: str = ""

    @property
    def name(self) -> str:
        """The primitive's name."""
        return str(self.eqn.primitive.name)

    @property
    def has_effect(self) -> bool:
        """True for what does more than to make values: callbacks, prints, writes to references."""
        return bool(self.eqn.effects)


@dataclass(slots=True)
class Program:
    """Equations in the order in which they were traced."""

    avals: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)
    # Values, or literals as they are.
    outputs: list[int | Any] = field(default_factory=list)

    @property
    def results(self) -> list[int]:
        """The outputs that are values."""
        return [value for value in self.outputs if isinstance(value, int)]

    def value(self, aval: Any) -> int:
        """Returns a new value."""
        self.avals.append(aval)
        return len(self.avals) - 1


def bytes_of(aval: Any) -> int:
    """Returns what an array of this type takes; 0 for tokens and the like."""
    size, dtype = getattr(aval, "size", None), getattr(aval, "dtype", None)
    if size is None or dtype is None:
        return 0
    try:
        return int(size) * int(dtype.itemsize)
    except (TypeError, ValueError):
        return 0


def trace(closed: Any, most_equations: int = 0, most_parts: int = MOST_PARTS) -> Program:
    """Returns the program of a closed jaxpr, as `jax.make_jaxpr` makes it. A `scan` becomes up to
    `most_parts` shorter ones, or its iterations if it has no more, as long as all parts together
    have no more than `most_equations`; 0: none does."""
    tracing = _Tracing(most_equations - equations_of(closed.jaxpr), most_parts)
    known = tracing.constants(closed.jaxpr, closed.consts)
    for var in closed.jaxpr.invars:
        known[var] = tracing.program.value(var.aval)
        tracing.program.inputs.append(known[var])
    found = tracing.inline(closed.jaxpr, known)
    tracing.program.outputs = [tracing.whole(made) for made in found]
    _remove_dead(tracing.program)
    return tracing.program


class _Tracing:
    def __init__(self, room: int, most_parts: int) -> None:
        self.program = Program()
        # Of the calls around what is inlined.
        self._scope = ""
        # How many equations the loops may add.
        self._room = room
        self._most_parts = most_parts

    def constants(self, jaxpr: Any, values: Any) -> dict[Any, Any]:
        """Returns the constants of a body as values: where its variables begin."""
        known: dict[Any, Any] = {}
        for var, constant in zip(jaxpr.constvars, values, strict=True):
            known[var] = self.program.value(var.aval)
            self.program.constants[known[var]] = constant
        return known

    def inline(self, jaxpr: Any, known: dict[Any, Any]) -> list[Any]:
        """Appends the equations of a body; `known`: its variables so far. Returns its results."""

        def of(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            given = [of(atom) for atom in eqn.invars]
            body = body_of(eqn)
            parts = spans(eqn, self._room, self._most_parts)
            if body is None and not parts:
                self._append(eqn, known, jaxpr.debug_info)
                continue
            outer, self._scope = self._scope, _joined(self._scope, eqn)
            made = self._call(*body, given) if body else self._loop(eqn, given, parts)
            self._scope = outer
            known.update(zip(eqn.outvars, made, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def _call(self, jaxpr: Any, constants: Any, given: list[Any]) -> list[Any]:
        into = self.constants(jaxpr, constants)
        into.update(zip(jaxpr.invars, given, strict=True))
        return self.inline(jaxpr, into)

    def _loop(self, eqn: Any, given: list[Any], parts: list[Span]) -> list[Any]:
        body = eqn.params["jaxpr"]
        self._room -= (len(parts) - 1) * equations_of(body.jaxpr)
        shared = eqn.params["num_consts"]
        carried = shared + eqn.params["num_carry"]
        constants = [self.whole(x) for x in given[:shared]]
        carry = [self.whole(x) for x in given[shared:carried]]
        made: dict[int, list[Any]] = {}
        for at in range(len(parts))[:: -1 if eqn.params["reverse"] else 1]:
            items = [self._part(x, parts, at) for x in given[carried:]]
            reads = [*constants, *carry, *items]
            length = parts[at][1] - parts[at][0]
            if length == 1:
                out = self._call(body.jaxpr, body.consts, reads)
            else:
                shorter = shortened(eqn, [self._aval(x) for x in reads], length)
                room, self._room = self._room, -1  # it stays as it is
                out = self._call(shorter.jaxpr, shorter.consts, reads)
                self._room = room
            carry = [self.whole(x) for x in out[: carried - shared]]
            made[at] = out[carried - shared :]
        columns = zip(*(made[at] for at in sorted(made)), strict=True)
        return [*carry, *(Pieces(list(column), parts) for column in columns)]

    def _part(self, whole: Any, parts: list[Span], at: int) -> Any:
        """Returns what a part of a scan reads of what the scan walks along."""
        if isinstance(whole, Pieces) and whole.spans == parts:
            return whole.items[at]
        whole = self.whole(whole)
        closed = part(self._aval(whole), parts[at])
        (made,) = self._call(closed.jaxpr, closed.consts, [whole])
        return made

    def _aval(self, value: Any) -> Any:
        return value.aval if isinstance(value, core.Literal) else self.program.avals[value]

    def whole(self, value: Any) -> Any:
        """Returns a value itself; what a loop made in pieces, put together."""
        if not isinstance(value, Pieces):
            return value
        if value.whole is None:
            items = [self.whole(item) for item in value.items]
            closed = joined([self._aval(item) for item in items], value.spans)
            (value.whole,) = self._call(closed.jaxpr, closed.consts, items)
        return value.whole

    def _append(self, eqn: Any, known: dict[Any, Any], debug: Any) -> None:
        variables = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, core.Literal)))
        for var in variables:
            known[var] = self.whole(known[var])
        # A literal that came in through a call stands in the place of a variable.
        fixed = {
            v: jnp.asarray(known[v].val, v.aval.dtype)
            for v in variables
            if isinstance(known[v], core.Literal)
        }
        outs = [v for v in eqn.outvars if not isinstance(v, core.DropVar)]
        debug = debug._replace(arg_names=None, result_paths=None)
        single = core.Jaxpr((), variables, outs, [eqn], eqn.effects, debug)
        call = core.jaxpr_as_fun(core.ClosedJaxpr(single, ()))
        free = [v for v in variables if v not in fixed]
        reads = list(dict.fromkeys(known[v] for v in free))
        # Two variables of a body may be one value outside.
        at = {v: reads.index(known[v]) for v in free}

        def run(*values: Any) -> list[Any]:
            return list(call(*(fixed[v] if v in fixed else values[at[v]] for v in variables)))

        writes: list[int | None] = []
        for var in outs:
            known[var] = self.program.value(var.aval)
            writes.append(known[var])
        self.program.equations.append(Equation(eqn, reads, writes, run, _joined(self._scope, eqn)))


def _joined(outer: str, eqn: Any) -> str:
    return "/".join(part for part in (outer, str(eqn.source_info.name_stack)) if part)


def _remove_dead(program: Program) -> None:
    needed = set(program.results)
    kept: list[Equation] = []
    for equation in reversed(program.equations):
        if equation.has_effect or any(w in needed for w in equation.writes):
            needed.update(equation.reads)
            kept.append(equation)
    program.equations = kept[::-1]
    for equation in kept:
        equation.writes = [w if w in needed else None for w in equation.writes]
