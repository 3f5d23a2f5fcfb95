# SPDX-License-Identifier: Apache-2.0
"""The three exceptions of the package, all of one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reprise.plan.received import Plan


class RepriseError(Exception):
    """Something of Reprise cannot be done; the job itself can train on."""


class InfeasibleBudget(RepriseError):
    """No plan fits. `smallest_bytes` is the smallest budget not ruled out; `plan`, where the
    planner answered, is its answer, with the op that needs more and whose word that is."""

    def __init__(
        self, sentence: str, smallest_bytes: int | None = None, plan: Plan | None = None
    ) -> None:
        super().__init__(sentence)
        self.smallest_bytes = smallest_bytes
        self.plan = plan


class ServerUnavailable(RepriseError):
    """No daemon answers and none could be started."""
