# SPDX-License-Identifier: Apache-2.0
"""The memory of a comparison with the reference: the model compiled without a plan.

    room = ReferenceRoom(device, meter, keeps_budget=True)
    if room.affords(plan, budget_bytes) and not (why := room.missing(plan)): ...compare...
    room.took(peak)              # of a step that was compared

A step that is compared takes the memory of a step without a plan. The first one is compared
wherever the device has as much; later ones where it keeps the budget, or where checks of gradients
were asked for.
"""

from __future__ import annotations

import torch

from reprise.base.saying import say
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.room import room_on


class ReferenceRoom:
    """Decides whether there is memory for the comparisons of one job."""

    def __init__(self, device: torch.device, meter: Meter | None, *, keeps_budget: bool) -> None:
        """`keeps_budget`: later comparisons may not take more than the budget."""
        self._device = device
        self._meter = meter
        self._keeps_budget = keeps_budget
        self._compared_bytes = 0  # the peak of a step that was compared
        self._is_said = False

    def affords(self, plan: Plan | None, budget_bytes: int) -> bool:
        """Returns whether a later step may be compared; says once if it may not."""
        need = self._needs_bytes(plan)
        if not self._keeps_budget or need <= budget_bytes:
            return True
        if not self._is_said:
            self._is_said = True
            say(
                f"gradients of later compiled steps are not compared: that takes "
                f"{format_bytes(need)}, the budget is {format_bytes(budget_bytes)} "
                '(verify="gradients" compares them all the same)'
            )
        return False

    def missing(self, plan: Plan | None) -> str:
        """Returns why the device has not enough memory for a comparison now, or ""."""
        room, meter = room_on(self._device), self._meter
        if room is None or meter is None:
            return ""
        more = self._needs_bytes(plan) - meter.live()
        if more <= room.bytes:
            return ""
        return (
            f"a comparison takes {format_bytes(more)} more than is in use, and only "
            f"{format_bytes(room.bytes)} are left ({room.what})"
        )

    def took(self, peak: int) -> None:
        """Notes the peak of a step that was compared."""
        self._compared_bytes = max(self._compared_bytes, peak)

    def _needs_bytes(self, plan: Plan | None) -> int:
        """Returns the peak of a step that is compared: as measured, or that of a step without a
        plan."""
        return self._compared_bytes or (plan.base_peak_bytes if plan is not None else 0)
