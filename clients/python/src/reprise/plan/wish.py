# SPDX-License-Identifier: Apache-2.0
"""What a program asks of a plan, in every framework: a budget, and what happens where none fits.

    wish = Wish.of(budget, on_infeasible="plain", max_overhead=0.3, time_limit_s=None)
    answer = wish.answered(lambda budget: plan(graph, budget, "tf-graph"))
    if answer.plan is None: ...run the step as it is; answer.why is said already...

Environment: REPRISE_BUDGET replaces the budget; REPRISE_DISABLE=1 means that nothing is planned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from reprise.agent.received import InfeasibleBudget, Plan
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.base.units import format_bytes, format_percent
from reprise.plan.asking import check_time_limit

OnInfeasible = Literal["raise", "nearest", "plain"]
WAYS = ("raise", "nearest", "plain")


def is_disabled() -> bool:
    """Returns whether REPRISE_DISABLE=1 switches everything off."""
    return os.environ.get("REPRISE_DISABLE") == "1"


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, or why there is none. `budget_bytes`: the budget that was refused, 0 where it is not
    known."""

    plan: Plan | None
    why: str = ""
    budget_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """A budget, and what happens where no plan fits it or none is cheap enough."""

    budget: Budget
    on_infeasible: OnInfeasible = "plain"
    # The most extra time, as a fraction of a step without a plan; None: any.
    max_overhead: float | None = None
    time_limit_s: float | None = None

    @classmethod
    def of(
        cls,
        budget: str | int,
        on_infeasible: str = "plain",
        max_overhead: float | None = None,
        time_limit_s: float | None = None,
    ) -> Wish:
        """Checks what a program asks, before anything is traced. Raises RepriseError that names the
        argument, what is wrong with it and what to write."""
        if on_infeasible not in WAYS:
            raise RepriseError(
                f"on_infeasible: must be one of {', '.join(WAYS)}, got {on_infeasible!r}"[:160]
            )
        is_number = isinstance(max_overhead, (int, float)) and not isinstance(max_overhead, bool)
        if max_overhead is not None and not (is_number and 0 <= max_overhead < 1000):
            raise RepriseError(
                "max_overhead: must be extra time as a fraction, 0.3 for 30 %, got "
                f"{max_overhead!r}"[:160]
            )
        if time_limit_s is not None:
            check_time_limit(time_limit_s)
        asked = Budget(os.environ.get("REPRISE_BUDGET") or budget)
        return cls(asked, on_infeasible, max_overhead, time_limit_s)  # type: ignore[arg-type]

    def keywords(self) -> dict[str, Any]:
        """Returns it as the keywords of an `auto`."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def answered(self, ask: Callable[[str | int], Plan]) -> Answer:
        """Returns the plan that `ask` has for the budget. Where it raises InfeasibleBudget, or its
        plan takes more than `max_overhead`, does what `on_infeasible` says: raises, asks for the
        smallest budget with a known plan, or returns why the step runs without a plan. The last two
        print a line."""
        try:
            return Answer(self.afforded(ask(self.budget)))
        except InfeasibleBudget as refusal:
            return self.refused(refusal, ask)

    def afforded(self, plan: Plan) -> Plan:
        """Returns the plan. Raises InfeasibleBudget if it takes more than `max_overhead`."""
        if why := too_dear(plan, self.max_overhead):
            raise InfeasibleBudget(why, plan=plan)
        return plan

    def refused(self, refusal: InfeasibleBudget, ask: Callable[[str | int], Plan]) -> Answer:
        """Does what `on_infeasible` says about a refusal."""
        if self.on_infeasible == "raise":
            raise refusal
        newest, tried = refusal, 0
        # What is known to fit as a graph may take more once it is compiled, which then is known.
        while self.on_infeasible == "nearest" and (least := _smallest_known(newest) or 0) > tried:
            tried = least
            try:
                plan = self.afforded(ask(least))
            except InfeasibleBudget as another:
                newest = another
                continue
            nearest = format_bytes(plan.budget_bytes)
            say(f"{refusal} Planned within {nearest}, the nearest budget.")
            return Answer(plan, str(refusal))
        say(f"{refusal} Training continues without a plan.")
        return Answer(None, str(refusal), refusal.plan.budget_bytes if refusal.plan else 0)

    def failed(self, error: Exception) -> Answer:
        """Does what `on_infeasible` says about a step that cannot be planned at all: raises the
        error, or returns why the step runs without a plan, and prints that."""
        if self.on_infeasible == "raise":
            raise error
        say(no_plan(error))
        return Answer(None, _reason(error))


def no_plan(error: Exception) -> str:
    """Returns what a program is told whose step cannot be planned."""
    return f"No plan: {_reason(error)} Training continues without a plan."


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, RepriseError) else f"{type(error).__name__}: "
    return f"{kind}{error}".rstrip(".") + "."


def too_dear(plan: Plan, max_overhead: float | None) -> str:
    """Returns why a plan takes more extra time than is allowed; empty if it does not."""
    if max_overhead is None or plan.overhead <= max_overhead:
        return ""
    return (
        f"The plan within {format_bytes(plan.budget_bytes)} takes "
        f"{format_percent(plan.overhead, sign=True)} time, and max_overhead allows "
        f"{format_percent(max_overhead, sign=True)}. Give it a larger budget; `reprise sweep` "
        "shows what each costs."
    )


def _smallest_known(refusal: InfeasibleBudget) -> int | None:
    answer = refusal.plan
    if answer is None or answer.feasible:  # one that was too dear
        return None
    known = answer.infeasible.smallest_known_bytes if answer.infeasible is not None else 0
    return known or refusal.smallest_bytes
