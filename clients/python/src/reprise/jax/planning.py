# SPDX-License-Identifier: Apache-2.0
"""A plan that XLA confirms: plan, compile, read the bytes, plan again with the excess held back.

The planner predicts what the step graph shows. What counts is what XLA assigns when it has compiled
the planned program, so a plan is handed out only if those bytes are within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from reprise.agent.received import InfeasibleBudget
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_percent
from reprise.jax.captured import CapturedStep, capture
from reprise.jax.clusters import cluster
from reprise.jax.compiled import Memory, compile_flat, memory_of
from reprise.jax.program import trace
from reprise.jax.results import peak_in_results
from reprise.jax.rewrite import planned
from reprise.jax.workspace import Workspaces
from reprise.plan import Plan
from reprise.plan import plan as ask

__all__ = ["MOST_EQUATIONS", "MOST_ROUNDS", "Found", "bytes_of_budget", "find", "refused"]

MOST_ROUNDS = 3
# Opening a loop costs compile time for each of its iterations.
MOST_EQUATIONS = 6000


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one step at one set of shapes. Bytes are those of arguments, results and
    temporaries, as XLA assigns them on one device."""

    budget_bytes: int
    plain: Memory
    # Of the program that runs; None: nothing compiled it by itself.
    compiled: Memory | None
    # None: the plain program is within the budget, and runs.
    plan: Plan | None
    # Plans that were compiled.
    rounds: int
    step: CapturedStep | None
    # The peak of the plan's schedule, without what was held back for XLA; without a plan, what XLA
    # says of the plain program.
    predicted_bytes: int
    # By flat arguments: what runs, and the same as a function that can be traced.
    program: Any
    function: Callable[..., Any]
    plain_program: Any

    @property
    def sentence(self) -> str:
        """Plain, planned and budget in one sentence."""
        plain, budget = format_bytes(self.plain.total), format_bytes(self.budget_bytes)
        if self.plan is None:
            return f"The plain step compiles to {plain}, within {budget}: nothing is planned."
        promised = format_bytes(self.predicted_bytes)
        again = len(self.plan.recomputed_ops)
        more = f"{again} ops run again, {format_percent(self.plan.overhead, sign=True)} estimated"
        if self.compiled is None:
            return f"Plain {plain}, predicted {promised} of {budget}, not compiled; {more}."
        off = self.compiled.total / max(1, self.predicted_bytes) - 1
        return (
            f"Plain {plain}, compiled to {format_bytes(self.compiled.total)} of {budget} "
            f"(predicted {promised}, {format_percent(off, sign=True)}); {more}."
        )


def bytes_of_budget(budget: str | int, plain: Memory) -> int:
    """Returns a budget in bytes. "0.5x" is arguments and results plus half of the temporaries that
    XLA has for the plain program; a percentage and "fit" are of what the device says it has."""
    given = Budget(budget)
    known = given.of_step(plain.static, plain.static + plain.temporaries)
    if known is not None:
        return known
    stats = jax.local_devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit")
    if not limit:
        raise RepriseError(
            f'budget "{given}": this device does not say how much memory it has; write 8GiB, 0.5x '
            "or a number of bytes"
        )
    return int(limit * (given.amount / 100 if given.kind == "percent" else 0.95))


def find(
    closed: Any,
    arguments: Sequence[Any],
    budget: str | int,
    *,
    donated: Sequence[int] = (),
    name: str = "JAX step",
    time_limit_s: float | None = None,
    most_equations: int = MOST_EQUATIONS,
) -> Found:
    """Plans a traced step (`jax.make_jaxpr`) until XLA confirms the budget. `arguments`: flat,
    arrays or shapes.

    Raises `InfeasibleBudget` where no plan fits, or none that fits stays so when it is compiled;
    it says to how many bytes the best one compiled."""
    plain_function = core.jaxpr_as_fun(closed)
    plain_program = compile_flat(plain_function, arguments, donated, ordered=False)
    plain = memory_of(plain_program)
    limit = bytes_of_budget(budget, plain)
    if plain.total <= limit:
        program, function = plain_program, plain_function
        return Found(
            limit, plain, plain, None, 0, None, plain.total, program, function, plain_program
        )
    clusters = cluster(trace(closed, most_equations))
    step = capture(clusters, plain.static, name, Workspaces(plain.total))
    reserve, smallest = 0, 0
    for rounds in range(1, MOST_ROUNDS + 1):
        try:
            answer = ask(step.graph, limit, time_limit_s=time_limit_s, reserve_bytes=reserve)
        except InfeasibleBudget as refusal:
            raise refused(refusal.plan, str(refusal), plain, smallest) from None
        function = planned(step, answer.schedule)
        program = compile_flat(function, arguments, donated)
        memory = memory_of(program)
        if memory.total <= limit:
            peak = peak_in_results(step, answer.schedule, [arguments[i] for i in donated])
            return Found(
                limit, plain, memory, answer, rounds, step, peak, program, function, plain_program
            )
        smallest = min(smallest or memory.total, memory.total)
        # What XLA needs beyond the step graph; a third plan gets more, its excess may be larger.
        beyond = memory.total - (answer.peak_bytes - reserve)
        reserve = max(reserve, beyond) + (memory.total - limit) * (rounds - 1) // 2
    fact = f"no plan of {MOST_ROUNDS} for {format_bytes(limit)} compiles to it"
    raise refused(None, f"{fact[0].upper()}{fact[1:]}.", plain, smallest)


def refused(answer: Plan | None, why: str, plain: Memory, smallest: int) -> InfeasibleBudget:
    """Returns a refusal with what was compiled."""
    text = f"{why} XLA compiles the plain step to {format_bytes(plain.total)}"
    if smallest:
        text += f", and the smallest plan for this budget to {format_bytes(smallest)}"
    known = smallest or (
        answer.infeasible.smallest_known_bytes if answer and answer.infeasible else 0
    )
    return InfeasibleBudget(text + ".", known or None, answer)
