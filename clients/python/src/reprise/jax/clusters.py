# SPDX-License-Identifier: Apache-2.0
"""Equations in clusters: what XLA makes one loop of, and everything else by itself.

A value that only one cluster reads, and that a loop can make, becomes a part of that cluster and
takes no memory. A view has none of its own either. Spread scalars, ranges and other orders of axes
are made again by everyone who reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reprise.jax.kinds import FUSIBLE, LOOPS, is_remade, is_view
from reprise.jax.program import Equation, Program, bytes_of

# By equation: the last one of its cluster.
Owner = dict[Equation, Equation]

# A chain that every reader makes again is no longer than this.
MOST_STEPS = 16


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
    light: dict[int, Equation] = field(default_factory=dict)

    def needed(self, values: list[int]) -> tuple[list[Equation], list[int]]:
        """Returns the light equations that make these values, in their order, and the memory
        below."""
        order: dict[Equation, None] = {}
        memory: dict[int, None] = {}

        def visit(value: int) -> None:
            equation = self.light.get(value)
            if equation is None:
                memory[value] = None
            elif equation not in order:
                for read in equation.reads:
                    visit(read)
                order[equation] = None

        for value in values:
            visit(value)
        return list(order), list(memory)


def cluster(program: Program, lean: bool = False) -> Clusters:
    """Groups the equations of a program. `lean`: loops make again in themselves what other loops
    have made of no more memory, so that they read less at once."""
    heavy: list[Equation] = []
    results = _results(program)
    found = Clusters(program, [])
    for_loops = _for_loops(program) - results if lean else set()
    for equation in program.equations:
        made = equation.writes[0] if len(equation.writes) == 1 else None
        if made is not None and (
            is_view(program, equation)
            or is_remade(equation, made in results)
            or (made in for_loops and _is_short(found, equation))
        ):
            found.light[made] = equation
        else:
            heavy.append(equation)
    owner = _grouped(found, heavy)
    _fill(found, heavy, owner)
    return found


def _for_loops(program: Program) -> set[int | None]:
    """Returns the values that loops make and only loops read."""
    others = set(program.results)
    for equation in reversed(program.equations):
        is_one = equation.name in LOOPS or (
            is_view(program, equation) and equation.writes[0] not in others
        )
        if not is_one:
            others.update(equation.reads)
    return {
        equation.writes[0]
        for equation in program.equations
        if equation.name in FUSIBLE and len(equation.writes) == 1 and not equation.has_effect
    } - others


def _is_short(found: Clusters, equation: Equation) -> bool:
    """Returns whether a value is made in few steps of no more memory than its own."""
    steps, memory = found.needed(equation.reads)
    avals = found.program.avals
    (made,) = equation.writes
    assert made is not None
    return len(steps) < MOST_STEPS and sum(bytes_of(avals[v]) for v in memory) <= bytes_of(
        avals[made]
    )


def _results(program: Program) -> set[int]:
    """Returns the results of a program, and the values that they are views of."""
    found = set(program.results)
    for equation in reversed(program.equations):
        if is_view(program, equation) and equation.writes[0] in found:
            found.update(equation.reads)
    return found


def _grouped(found: Clusters, heavy: list[Equation]) -> Owner:
    """Returns, by equation, the last equation of its cluster."""
    readers: dict[int, list[Equation]] = {}
    for equation in heavy:
        for value in found.needed(equation.reads)[1]:
            readers.setdefault(value, []).append(equation)
    kept = set(found.needed(found.program.results)[1])
    owner: Owner = {}
    for equation in reversed(heavy):
        owner[equation] = equation
        made = [w for w in equation.writes if w is not None]
        if equation.name not in FUSIBLE or len(made) != 1 or made[0] in kept:
            continue
        owners = {owner[reader] for reader in readers.get(made[0], ())}
        if len(owners) == 1 and all(r.name in LOOPS for r in readers[made[0]]):
            owner[equation] = owners.pop()
    _cut(found, heavy, owner, readers, kept)
    return owner


@dataclass(slots=True)
class _Below:
    """What is melted into an equation so far."""

    equations: set[Equation] = field(default_factory=set)
    # Memory that they read.
    reads: set[int] = field(default_factory=set)


def _cut(
    found: Clusters,
    heavy: list[Equation],
    owner: Owner,
    readers: dict[int, list[Equation]],
    kept: set[int],
) -> None:
    """Cuts clusters where less memory waits then. All that a loop reads has to be there at once:
    of the sum over a `scan`, say, every term. A part that runs by itself, before the last of the
    others is made, leaves only its own result waiting."""
    avals = found.program.avals
    position = {e: at for at, e in enumerate(heavy)}
    maker = {w: position[e] for e in heavy for w in e.writes if w is not None}
    for group in _groups(heavy, owner).values():
        latest = max((maker[v] for v in _memory(found, group) if v in maker), default=-1)
        below: dict[int, _Below] = {}
        for equation in group[:-1]:
            here = _Below({equation})
            for value in found.needed(equation.reads)[1]:
                part = below.get(value, _Below(reads={value}))
                here.equations |= part.equations
                here.reads |= part.reads
            (made,) = (w for w in equation.writes if w is not None)
            waiting = sum(
                bytes_of(avals[v])
                for v in here.reads
                if v in maker
                and v not in kept
                and all(r in here.equations or position[owner[r]] < latest for r in readers[v])
            )
            if position[equation] < latest and waiting > bytes_of(avals[made]):
                for each in here.equations:
                    owner[each] = equation
            else:
                below[made] = here


def _groups(heavy: list[Equation], owner: Owner) -> dict[Equation, list[Equation]]:
    """Returns the equations of each cluster, by its last one."""
    groups: dict[Equation, list[Equation]] = {}
    for equation in heavy:
        groups.setdefault(owner[equation], []).append(equation)
    return groups


def _memory(found: Clusters, group: list[Equation]) -> list[int]:
    """Returns the memory that a cluster reads."""
    inside = {w for e in group for w in e.writes}
    read = found.needed([v for e in group for v in e.reads])[1]
    return [v for v in read if v not in inside]


def _fill(found: Clusters, heavy: list[Equation], owner: Owner) -> None:
    groups = _groups(heavy, owner)
    found.order = [Cluster(groups[last]) for last in heavy if last in groups]
    wanted = set(found.needed(found.program.results)[1])
    for one in found.order:
        one.reads = _memory(found, one.equations)
        # So differentiation names what it makes to go back.
        one.backward = "transpose(" in one.equations[-1].scope
        wanted.update(one.reads)
    for one in found.order:
        one.writes = [w for e in one.equations for w in e.writes if w in wanted]
