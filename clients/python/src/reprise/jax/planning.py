# SPDX-License-Identifier: Apache-2.0
"""A plan that XLA confirms: plan, compile, read the bytes, plan again with the excess held back.

The planner predicts what the step graph shows. What counts is what XLA assigns when it has compiled
the planned program, so a plan is handed out only if those bytes are within the budget.

The graph has clusters for ops, in an order: what is proven of it is proven of no other way to
compute the step. Every sentence about a bound or a refusal says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Thread
from time import monotonic
from typing import Any

import jax
from jax.extend import core

from reprise.agent.received import Infeasible, InfeasibleBudget
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.base.units import format_bytes, format_percent
from reprise.jax import kept
from reprise.jax.captured import CapturedStep, capture
from reprise.jax.clusters import cluster
from reprise.jax.compiled import Memory, compile_flat, measured, memory_of, ways_to_compile
from reprise.jax.loops import MOST_PARTS
from reprise.jax.program import trace
from reprise.jax.results import peak_in_results
from reprise.jax.rewrite import TABLE_BYTES, planned
from reprise.jax.workspace import Workspaces
from reprise.plan import Plan, evaluate
from reprise.plan import plan as ask
from reprise.plan.asking import MOST_TIME_S
from reprise.plan.finding import find_server
from reprise.plan.result import Known
from reprise.plan.session import is_within_run
from reprise.plan.wish import Wish

MOST_ROUNDS = 3
# Opening a loop costs compile time for each of its iterations.
MOST_EQUATIONS = 6000


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one step at one set of shapes. Bytes are those of arguments, results and
    temporaries, as XLA assigns them on one device."""

    budget_bytes: int
    plain: Memory
    # Of the program that runs.
    compiled: Memory
    # None: the plain program runs, because it is within the budget or because of `why`.
    plan: Plan | None
    # Plans that were compiled; 0 if an earlier process found this one.
    rounds: int
    step: CapturedStep | None
    # The peak of the plan's schedule, without what was held back for XLA; without a plan, what XLA
    # says of the plain program.
    predicted_bytes: int
    # By flat arguments: what runs, and the same as a function that can be traced.
    program: Any
    function: Callable[..., Any]
    # Why a step above the budget runs without a plan.
    why: str = ""

    @property
    def sentence(self) -> str:
        """Plain, planned and budget in one sentence."""
        plain, budget = format_bytes(self.plain.total), format_bytes(self.budget_bytes)
        if self.plan is None:
            if self.why:
                return f"{self.why} The step runs without a plan."
            return f"The plain step compiles to {plain}, within {budget}: nothing is planned."
        promised = format_bytes(self.predicted_bytes)
        again = len(self.plan.recomputed_ops)
        more = f"{again} ops run again, {format_percent(self.plan.overhead, sign=True)} estimated"
        off = self.compiled.total / max(1, self.predicted_bytes) - 1
        return (
            f"Plain {plain}, compiled to {format_bytes(self.compiled.total)} of {budget} "
            f"(predicted {promised}, {format_percent(off, sign=True)}); {more}."
        )

    def known(self, bits: bool | None) -> Known:
        """Returns it as every framework reports a plan."""
        return Known(
            self.sentence,
            self.budget_bytes,
            self.predicted_bytes,
            self.compiled.total,
            "XLA",
            bits,
            self.plan.overhead if self.plan else None,
            self.plan,
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
    wish: Wish,
    *,
    donated: Sequence[int] = (),
    name: str = "JAX step",
    most_equations: int = MOST_EQUATIONS,
) -> Found:
    """Plans a traced step (`jax.make_jaxpr`) until XLA confirms the budget. `arguments`: flat,
    arrays or shapes. What an earlier process found for the same program is compiled, checked and
    taken.

    Where no plan fits, or none that fits stays so when it is compiled, it does what the wish
    says; `InfeasibleBudget` says to how many bytes the best plan compiled."""
    search = _Search(closed, arguments, donated, wish, name, most_equations)
    key = kept.key_of(closed, donated, wish, most_equations)
    # A plan of another run has no place in that of `reprise run`.
    earlier = None if is_within_run() else kept.read(key)
    found = None if earlier is None else search.again(earlier)
    if found is not None:
        return found
    if wish.budget.is_share and not is_within_run():
        # While XLA compiles the plain step, which may be within any other budget as it is.
        Thread(target=_start_server, daemon=True).start()
    plain = search.plain
    limit = bytes_of_budget(wish.budget, plain)
    if plain.total <= limit:
        found = search.unplanned(limit)
        if found.compiled.total <= limit:
            kept.write(key, kept.Kept(plain, None, plain.total))
            return found
    try:
        answer = wish.answered(search.ask)
    except InfeasibleBudget:
        raise
    except Exception as error:
        return search.unplanned(limit, wish.failed(error).why)
    found = search.found
    if found is not None and found.budget_bytes == limit:
        kept.write(key, kept.Kept(plain, found.plan, found.predicted_bytes, lean=search.lean))
    elif found is None and wish.on_infeasible == "plain" and search.is_proven:
        kept.write(key, kept.Kept(plain, None, plain.total, answer.why))
    if found is None or answer.plan is None:
        return search.unplanned(limit, answer.why)
    return found


def _start_server() -> None:
    with suppress(Exception):  # which comes again where a plan is asked for
        find_server()


@dataclass
class _Search:
    """The plans of one step, until XLA confirms one."""

    _closed: Any
    _arguments: Sequence[Any]
    _donated: Sequence[int]
    _wish: Wish
    _name: str
    _most_equations: int
    # The newest confirmed plan, and whether clusters are lean, because no others had a plan.
    found: Found | None = None
    lean: bool = False
    # Whether the newest refusal is proven of its clusters. Another search may have an answer where
    # one has ended without.
    is_proven: bool = False
    _smallest: Found | None = None  # of the plans that were above their limits
    _measure_s: float = 0.0  # what it took to know the bytes of the plain step

    @cached_property
    def _plain_function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = core.jaxpr_as_fun(self._closed)
        return function

    @cached_property
    def plain(self) -> Memory:
        """What XLA says of the step without a plan."""
        started = monotonic()
        found = measured(self._plain_function, self._arguments, self._donated)
        self._measure_s = monotonic() - started
        return found

    def unplanned(self, limit: int, why: str = "") -> Found:
        function = self._plain_function
        program = compile_flat(function, self._arguments, self._donated)
        plain = memory_of(program)
        return Found(limit, plain, plain, None, 0, None, plain.total, program, function, why)

    def again(self, earlier: kept.Kept) -> Found | None:
        """Returns what an earlier process found; None if it is not so any more."""
        limit = bytes_of_budget(self._wish.budget, earlier.plain)
        if earlier.plan is None:
            if not earlier.why and self.plain.total <= limit:
                return self.unplanned(limit)
            if earlier.why and self._wish.on_infeasible == "plain" and self.plain == earlier.plain:
                say(f"{earlier.why} Training continues without a plan.")
                return self.unplanned(limit, earlier.why)
            return None
        step = self._captured(earlier.plain.static, earlier.lean)
        try:
            evaluate(step.graph, earlier.plan.schedule)
        except RepriseError:
            return None
        plan, predicted = earlier.plan, earlier.predicted_bytes
        found = self._compiled(step, plan, limit, 0, earlier.plain, predicted)
        if found.compiled.total > limit:
            return None
        answer = self._wish.answered(lambda _: plan)
        return found if answer.plan is not None else self.unplanned(limit, answer.why)

    def ask(self, budget: str | int) -> Plan:
        """Returns a plan that XLA confirms; where there is none of the usual clusters, one of lean
        ones. Raises `InfeasibleBudget` where no plan fits, or none that fits stays so when it is
        compiled."""
        limit = bytes_of_budget(budget, self.plain)
        named = self._smallest  # by a refusal
        if named is not None and named.plan is not None and named.compiled.total == limit:
            self.found = replace(named, budget_bytes=limit)
            return named.plan
        try:
            return self._confirmed(limit)
        except InfeasibleBudget:
            if self.lean:
                raise
            self.lean = True
            del self._step, self._workspaces
            return self._confirmed(limit)

    def _confirmed(self, limit: int) -> Plan:
        step = self._step
        # Each op may run again once. What XLA adds for a loop is not known before.
        reserve = 2 * TABLE_BYTES * len(step.graph.ops)
        spare = (limit - self.plain.static) // 32 if _has_loops(step) else 0
        for rounds in range(1, MOST_ROUNDS + 1):
            try:
                try:
                    answer = self._asked(limit, reserve + spare)
                    reserve += spare
                except InfeasibleBudget:
                    if not spare:
                        raise
                    answer = self._asked(limit, reserve)
            except InfeasibleBudget as refusal:
                raise self._refused(refusal.plan, limit, reserve, str(refusal)) from None
            spare = 0
            made = self._compiled(step, answer, limit, rounds, self.plain, self._peak(step, answer))
            taken = made.compiled.total
            if taken <= limit:
                self.found = made
                return answer
            if self._smallest is None or taken < self._smallest.compiled.total:
                self._smallest = made
            # What XLA needs beyond the step graph, all workspaces known; a third plan gets more,
            # its excess may be larger.
            self._workspaces.measure(answer.schedule, 0)
            beyond = taken - evaluate(step.graph, answer.schedule).peak_bytes
            reserve = max(reserve, beyond) + (taken - limit) * (rounds - 1) // 2
        raise self._refused(answer, limit, reserve, "")

    def _peak(self, step: CapturedStep, answer: Plan) -> int:
        donated = [self._arguments[i] for i in self._donated]
        runs = sum(entry >= 0 for entry in answer.schedule)
        return peak_in_results(step, answer.schedule, donated) + TABLE_BYTES * runs

    def _compiled(
        self,
        step: CapturedStep,
        plan: Plan,
        limit: int,
        rounds: int,
        plain: Memory,
        predicted: int,
    ) -> Found:
        """Returns a plan with the program that XLA makes of it: the first that is within the limit,
        otherwise the smallest. Loops are compiled in the best way alone."""
        function = planned(step, plan.schedule)
        made: list[tuple[Memory, Any]] = []
        for options in ways_to_compile()[: 1 if _has_loops(step) else None]:
            program = compile_flat(function, self._arguments, self._donated, options)
            made.append((memory_of(program), program))
            if made[-1][0].total <= limit:
                break
        memory, program = min(made, key=lambda one: one[0].total)
        return Found(limit, plain, memory, plan, rounds, step, predicted, program, function)

    def _asked(self, limit: int, reserve: int) -> Plan:
        """Returns a plan in which clusters near its peak have the workspace that XLA says."""
        workspaces = self._workspaces
        while True:
            answer = self._answer(limit, reserve)
            if not workspaces.measure(answer.schedule, limit - reserve):
                return answer

    def _answer(self, budget: str | int, reserve: int) -> Plan:
        # As long as measuring takes, unless it is said otherwise. A plan within the run of
        # `reprise run` is made by the job's own request, which has no limit.
        seconds = self._wish.time_limit_s
        if seconds is None and not is_within_run():
            seconds = min(MOST_TIME_S, max(1.0, self._measure_s))
        return ask(self._step.graph, budget, time_limit_s=seconds, reserve_bytes=reserve)

    @cached_property
    def _step(self) -> CapturedStep:
        return self._captured(self.plain.static, self.lean)

    @cached_property
    def _workspaces(self) -> Workspaces:
        return Workspaces(self._step, self.plain.total)

    def _captured(self, static_bytes: int, lean: bool) -> CapturedStep:
        parts = MOST_EQUATIONS if lean else MOST_PARTS
        clusters = cluster(trace(self._closed, self._most_equations, parts), lean)
        return capture(clusters, static_bytes, self._name)

    def _refused(self, answer: Plan | None, limit: int, reserve: int, why: str) -> InfeasibleBudget:
        fact = answer.infeasible if answer else None
        known = fact.smallest_known_bytes if fact else 0
        self.is_proven = fact is not None and fact.smallest_budget_bytes > limit
        text = why or f"No plan of {MOST_ROUNDS} for {format_bytes(limit)} compiles to it."
        if fact is not None:
            text += " Other clusters of the same step may need less."
            if _has_loops(self._step):
                text += f" Scans have more parts beyond most_equations={self._most_equations}."
        text += f" XLA compiles the plain step to {format_bytes(self.plain.total)}"
        if self._smallest is not None:
            least = format_bytes(self._smallest.compiled.total)
            text += f", and the smallest plan for this budget to {least}"
        if self._wish.on_infeasible == "nearest" and self._smallest is None:
            with suppress(RepriseError):
                known = self._answer(Budget.least(), reserve).peak_bytes
        # With something to spare for what XLA needs beyond the graph.
        known = self._smallest.compiled.total if self._smallest else known + known // 64
        known = known if known < self.plain.total else 0
        if answer is not None:
            fact = replace(fact or Infeasible(0, 0, "", "", 0, ()), smallest_known_bytes=known)
            answer = replace(answer, feasible=False, infeasible=fact, sentence=f"{text}.")
        return InfeasibleBudget(f"{text}.", known or None, answer)


def _has_loops(step: CapturedStep) -> bool:
    return any(op.name == "scan" for op in step.graph.ops)
