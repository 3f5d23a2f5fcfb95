# SPDX-License-Identifier: Apache-2.0
"""Equations in clusters: what XLA makes one loop of, and everything else by itself.

A value that only one cluster reads, and that a loop can make, becomes a part of that cluster and
takes no memory. A view has none of its own either. Spread scalars, ranges and other orders of axes
are made again by everyone who reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reprise.jax.kinds import is_fusible, is_loop, is_remade, is_view
from reprise.jax.program import Equation, Program, bytes_of

__all__ = ["Cluster", "Clusters", "cluster"]


@dataclass(slots=True, eq=False)
class Cluster:
    """Equations that run as one."""

    equations: list[Equation]
    # Memory that it reads, and that it makes: values that are no views.
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    backward: bool = False


@dataclass(slots=True)
class Clusters:
    """All clusters of a program, in an order in which they can run."""

    program: Program
    order: list[Cluster]
    # What looks at memory or is made by every reader, by the value that it makes.
    light: dict[int, Equation]
    base: dict[int, int]

    def needed(self, values: list[int]) -> tuple[list[Equation], list[int]]:
        """Returns the light equations that make these values, in their order, and the memory
        below."""
        found: dict[int, Equation] = {}
        memory: dict[int, None] = {}
        order: list[Equation] = []

        def visit(value: int) -> None:
            if value not in self.light:
                memory.setdefault(value)
                return
            equation = self.light[value]
            if id(equation) in found:
                return
            found[id(equation)] = equation
            for read in equation.reads:
                visit(read)
            order.append(equation)

        for value in values:
            visit(value)
        return order, list(memory)


def cluster(program: Program) -> Clusters:
    """Groups the equations of a program."""
    light: dict[int, Equation] = {}
    base: dict[int, int] = {}
    heavy: list[Equation] = []
    results = _results(program)
    for equation in program.equations:
        made = equation.writes[0] if len(equation.writes) == 1 else None
        if made is not None and is_view(program, equation):
            light[made] = equation
            base[made] = base.get(equation.reads[0], equation.reads[0])
        elif made is not None and is_remade(equation, made in results):
            light[made] = equation
        else:
            heavy.append(equation)
    found = Clusters(program, [], light, base)
    owner = _grouped(found, heavy)
    _fill(found, heavy, owner)
    return found


def _results(program: Program) -> set[int]:
    """Returns the results of a program, and the values that they are views of."""
    found = {value for value in program.outputs if isinstance(value, int)}
    for equation in reversed(program.equations):
        if is_view(program, equation) and equation.writes[0] in found:
            found.update(equation.reads)
    return found


def _grouped(found: Clusters, heavy: list[Equation]) -> dict[int, int]:
    """Returns, by equation, the last equation of its cluster."""
    program = found.program
    readers: dict[int, list[Equation]] = {}
    for equation in heavy:
        for value in found.needed(equation.reads)[1]:
            readers.setdefault(value, []).append(equation)
    kept = set(found.needed([v for v in program.outputs if isinstance(v, int)])[1])
    owner: dict[int, int] = {}
    by_id = {id(e): e for e in heavy}
    for equation in reversed(heavy):
        owner[id(equation)] = id(equation)
        made = [w for w in equation.writes if w is not None]
        if not is_fusible(equation) or len(made) != 1 or made[0] in kept:
            continue
        owners = {owner[id(reader)] for reader in readers.get(made[0], ())}
        if len(owners) != 1 or not all(is_loop(r) for r in readers[made[0]]):
            continue
        last = by_id[next(iter(owners))]
        if _goes_along(found, readers, equation, last):
            owner[id(equation)] = id(last)
    return owner


def _goes_along(
    found: Clusters, readers: dict[int, list[Equation]], equation: Equation, last: Equation
) -> bool:
    """Returns False for a result of the forward that waits for the backward in less memory than
    what it is made from: a mask, say. It is worth keeping."""
    if is_backward(equation) or not is_backward(last):
        return True
    program = found.program
    (made,) = (w for w in equation.writes if w is not None)
    waits_too = 0
    for value in found.needed(equation.reads)[1]:
        if not any(is_backward(reader) for reader in readers[value]):
            waits_too += bytes_of(program.avals[value])
    return waits_too <= bytes_of(program.avals[made])


def is_backward(equation: Equation) -> bool:
    """Returns True for what differentiation made to go back."""
    return "transpose(" in equation.scope


def _fill(found: Clusters, heavy: list[Equation], owner: dict[int, int]) -> None:
    made: dict[int, Cluster] = {}
    for equation in heavy:
        made.setdefault(owner[id(equation)], Cluster([])).equations.append(equation)
    outputs = [v for v in found.program.outputs if isinstance(v, int)]
    kept = set(found.needed(outputs)[1])
    wanted: set[int] = set(kept)
    for one in made.values():
        inside = {w for e in one.equations for w in e.writes if w is not None}
        read = found.needed([v for e in one.equations for v in e.reads])[1]
        one.reads = [v for v in read if v not in inside]
        one.backward = is_backward(one.equations[-1])
        wanted.update(one.reads)
    for equation in heavy:
        if owner[id(equation)] == id(equation):
            one = made[id(equation)]
            one.writes = [
                w for e in one.equations for w in e.writes if w is not None and w in wanted
            ]
            found.order.append(one)
