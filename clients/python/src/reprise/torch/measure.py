# SPDX-License-Identifier: Apache-2.0
"""What a session measured: plain steps, planned steps, checks of gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from reprise.torch.verify import CheckResult

__all__ = ["Measured"]


@dataclass(slots=True)
class Measured:
    """Figures of one model, kept small however long it trains."""

    budget: str | None
    plain_steps: int = 0
    planned_steps: int = 0
    mismatched_steps: int = 0
    base_peak_bytes: int = 0
    planned_peak_bytes: int = 0
    checks: int = 0
    failed_checks: int = 0
    gradients_checked: int = 0
    verify_extra_bytes: int = 0
    smallest_budget: int | None = None
    # The first plain step pays for what is set up once; times of the last steps only.
    _plain_ns: list[int] = field(default_factory=list)
    _planned_ns: list[int] = field(default_factory=list)

    def plain(self, step_ns: int, peak: int) -> None:
        """A step without a plan. The first one has no optimizer state yet: its peak is not that
        of a step."""
        self.plain_steps += 1
        if self.plain_steps > 1:
            _add(self._plain_ns, step_ns)
        self.base_peak_bytes = max(self.base_peak_bytes, peak)

    def planned(self, step_ns: int, peak: int, representative: bool) -> None:
        """A step under the plan; `representative`: nothing else was going on that takes time."""
        self.planned_steps += 1
        self.planned_peak_bytes = max(self.planned_peak_bytes, peak)
        if representative:
            _add(self._planned_ns, step_ns)

    def new_plan(self) -> None:
        """Figures of the plan before are not those of this one."""
        self.planned_steps = self.planned_peak_bytes = 0
        self._planned_ns.clear()

    def checked(self, result: CheckResult) -> None:
        """A check of gradients."""
        self.checks += 1
        self.gradients_checked += result.checked
        self.failed_checks += bool(result.differing)
        self.verify_extra_bytes = max(self.verify_extra_bytes, result.extra_bytes)

    @property
    def base_step_ns(self) -> int:
        return int(median(self._plain_ns)) if self._plain_ns else 0

    @property
    def planned_step_ns(self) -> int:
        return int(median(self._planned_ns)) if self._planned_ns else 0


def _add(values: list[int], value: int) -> None:
    values.append(value)
    if len(values) > 101:
        del values[0]
