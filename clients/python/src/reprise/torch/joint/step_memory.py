# SPDX-License-Identifier: Apache-2.0
"""The memory of one step after another of a compiled model.

    memory = StepMemory(device)
    memory.begin()               # a step
    memory.watch_loss(outputs)   # its forward is over
    memory.keep_peak()           # what comes next is the optimizer, or not the step's
    memory.optimizer_ended()
    memory.peak()                # of the step so far

Without an exact meter the peaks are 0, and a line says why once.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.internals import guard
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.room import room_on
from reprise.torch.meter.state import open_meter, start_counting


class StepMemory:
    """Measures the steps of one job."""

    def __init__(self, device: torch.device) -> None:
        self.meter = _exact_meter(device)
        self.began_live = 0  # bytes alive when the step began
        # What the program makes between the forward and its first gradient, which no graph shows.
        self.outside_bytes = 0
        self.outputs_die = False  # before the backward reaches the graph
        self._outputs: list[weakref.ref[Any]] = []  # of the last forward
        # Of the step so far, in its optimizers and beside them.
        self.graph_peak = self.optimizer_peak = 0

    def begin(self) -> None:
        """Notes that a step begins."""
        meter = self.meter
        if meter is None:
            return
        # The program may still hold what the last forward returned, and drops it in this step.
        old = [storage for known in self._outputs if (storage := known()) is not None]
        self.began_live = meter.live() - sum(storage.nbytes() for storage in old)
        del old
        meter.reset_peak()
        self.graph_peak = self.optimizer_peak = self.outside_bytes = 0

    def returned(self, outputs: list[Tensor]) -> None:
        """Notes what a forward of the step has returned."""
        self._outputs = [weakref.ref(t.untyped_storage()) for t in outputs]

    def watch_loss(self, outputs: list[Tensor]) -> None:
        """Measures what the program makes between the forward, which has returned `outputs`, and
        its first gradient."""
        meter = self.meter
        if meter is None:
            return
        self.keep_peak()
        live = meter.live()
        own = sum(t.untyped_storage().nbytes() for t in outputs if t.requires_grad)

        def arrived(_: Tensor) -> None:
            if not self.outside_bytes:
                self.outside_bytes = max(1, meter.peak() - live - own)
                self.outputs_die = all(known() is None for known in self._outputs)

        for tensor in outputs:
            if tensor.requires_grad:
                tensor.register_hook(guard.quiet(arrived))

    def keep_peak(self) -> None:
        """Notes the peak so far, because what comes next is an optimizer or beside the step."""
        self.graph_peak = max(self.graph_peak, self.beside())

    def optimizer_ended(self) -> None:
        """Notes the peak of an optimizer, which has stepped."""
        self.optimizer_peak = max(self.optimizer_peak, self.beside())

    def beside(self) -> int:
        """Returns the peak since the last call of any of these, and begins a new one."""
        if self.meter is None:
            return 0
        peak = self.meter.peak()
        self.meter.reset_peak()
        return peak

    def peak(self) -> int:
        """Returns the peak of the step so far."""
        now = 0 if self.meter is None else self.meter.peak()
        return max(self.graph_peak, self.optimizer_peak, now)

    def stop(self) -> None:
        """Ends the measuring."""
        if self.meter is not None:
            self.meter.stop()


def _exact_meter(device: torch.device) -> Meter | None:
    try:
        meter = open_meter(device)
        if not meter.exact:  # one that looks at every op would be compiled, too
            say(f"the peak of compiled steps is not measured: {meter.why}")
            return None
        start_counting(meter, device)
    except RepriseError as error:
        say(f"the peak of compiled steps is not measured: {error}")
        return None
    return meter


class ReferenceRoom:
    """Decides whether there is memory for the comparisons of one job with the reference: the model
    compiled without a plan.

    A step that is compared takes the memory of a step without a plan. The first one is compared
    wherever the device has as much; later ones where it keeps the budget, or where checks of
    gradients were asked for."""

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
