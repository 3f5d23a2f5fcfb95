# SPDX-License-Identifier: Apache-2.0
"""How a model is armed: the arguments of `reprise.auto`, checked."""

from __future__ import annotations

from dataclasses import dataclass

from reprise.base.budget import Budget
from reprise.plan.wish import OnInfeasible
from reprise.torch.check.result import VALUES


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is armed."""

    budget: Budget | None  # None: it is only observed
    verify_every: int  # steps from one check to the next; 0: none is checked
    warmup: int = 1  # plain steps before one is captured
    name: str = ""  # of the model, for people
    first: str = "auto"  # how the first step is taken
    verify: str = VALUES  # what is compared
    on_infeasible: OnInfeasible = "plain"  # what happens where no plan fits
    max_overhead: float | None = None  # the most extra time of a plan, as a fraction; None: any
