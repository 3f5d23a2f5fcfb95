# SPDX-License-Identifier: Apache-2.0
"""What a plan comes to: predicted, compiled, what is alive at the peak, and which bits differ.

print(reprise.jax.explain(step, params, batch))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.jax.compiled import compile_flat
from reprise.jax.function import PlannedFunction
from reprise.jax.planning import Found
from reprise.jax.ulps import Difference, difference
from reprise.plan import evaluate

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Alive:
    """An array that is alive at the predicted peak."""

    bytes: int
    # Its type, the primitive that makes it and the name scope.
    what: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One plan. `str` of it is a text of a few lines."""

    found: Found
    # The largest arrays at the predicted peak, the largest first; none without a plan.
    alive: tuple[Alive, ...]
    # None: shapes were given, nothing ran.
    difference: Difference | None

    def __str__(self) -> str:
        lines = [self.found.sentence]
        if self.alive:
            lines.append("Alive at the predicted peak, beside arguments and results:")
            lines += [f"  {format_bytes(one.bytes):>10}  {one.what}" for one in self.alive[:SHOWN]]
        if self.difference is None:
            lines.append("Results: not compared, no arrays were given.")
        else:
            lines.append(self.difference.sentence)
        return "\n".join(lines)


def explain(step: PlannedFunction, *args: Any, **kwargs: Any) -> Explanation:
    """Plans `step`, which `auto` or `value_and_grad` made, for these arguments. Where they are
    arrays, it runs plain and planned on copies of them, and the results are compared. Raises
    `InfeasibleBudget` where no plan fits."""
    if not isinstance(step, PlannedFunction):
        raise RepriseError(
            "explain: takes what reprise.jax.auto or reprise.jax.value_and_grad returned, got "
            f"{step!r}"[:160]
        )
    found = step.plan(*args, **kwargs)
    made = step.trace(*args, **kwargs)
    if not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in made.leaves):
        plain = found.program
        if found.plan is not None:
            plain = compile_flat(core.jaxpr_as_fun(made.closed), made.leaves)
        results = [
            program(*[jnp.copy(leaf) for leaf in made.leaves]) for program in (plain, found.program)
        ]
        step.difference = difference(*results)
    return Explanation(found, _alive(found), step.difference)


def _alive(found: Found) -> tuple[Alive, ...]:
    if found.plan is None or found.step is None:
        return ()
    step, schedule = found.step, found.plan.schedule
    graph = step.graph
    maker = {s: op for op in graph.ops for s in op.writes}
    present: dict[int, None] = {}
    for entry in schedule[: evaluate(graph, schedule).peak_entry + 1]:
        if entry < 0:
            present.pop(-entry - 1, None)
        else:
            present.update(dict.fromkeys(graph.ops[entry].writes))
    found_alive = [
        Alive(
            graph.storages[s].bytes,
            f"{graph.storages[s].name} of {maker[s].name} ({maker[s].module or 'no scope'})",
        )
        for s in present
        if graph.storages[s].bytes
    ]
    return tuple(sorted(found_alive, key=lambda one: -one.bytes))
