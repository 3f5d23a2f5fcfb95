# SPDX-License-Identifier: Apache-2.0
"""A budget that is a share of a step, in bytes.

    budget = share.within(Budget("0.5x"), rung.number, message, largest)   # of a step graph
    why = share.raised(rung.number)                                # nothing fits: is it raised?

It is fixed with the first graph that is planned: a share of the largest step known by then. Later
graphs are planned within the same bytes, however large their own step was, or the budget would
follow the data. It is raised where a step that needs more has no plan within them, and by what is
alive beside the steps from then on, which is beside the share.
"""

from __future__ import annotations

from typing import Any

from reprise.base.budget import Budget
from reprise.base.units import format_bytes

# Of what the share leaves to a step: static memory that grows by less is its input.
GROWN = 0.1


class Share:
    """The share of one session."""

    def __init__(self) -> None:
        self._of = ""  # the budget that was fixed
        self._bytes = self._static = 0
        # By rung: what a share of its own step would be, and the static memory in it.
        self._own: dict[int, tuple[int, int]] = {}

    def within(self, budget: Budget, rung: int, message: dict[str, Any], largest: int) -> Budget:
        """Returns the budget of a rung's step graph: any other than a share as it is. `largest`:
        the highest peak of plain steps so far."""
        if not budget.is_share:
            return budget
        static, peak = int(message["static_bytes"]), int(message["measured_peak_bytes"])
        own = budget.of_step(static, peak) or 0
        if self._of != budget:
            self._of, self._static = budget, static
            self._bytes = max(own, budget.of_step(static, largest) or 0)
        grown = static - self._static
        fixed = self._bytes + (grown if grown > GROWN * (self._bytes - self._static) else 0)
        self._own[rung] = own, static
        return budget if fixed == own else Budget(fixed)

    def raised(self, rung: int) -> str:
        """Fixes the share anew with the graph of a rung, if that is more, and returns how; "" if it
        is not."""
        own, static = self._own.pop(rung, (0, 0))
        if own <= self._bytes:
            return ""
        before, self._bytes, self._static = self._bytes, own, static
        return (
            f"nothing fits a larger step in the {format_bytes(before)} that {self._of} was so far: "
            f"it is {format_bytes(self._bytes)} from here on"
        )
