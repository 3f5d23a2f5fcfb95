# SPDX-License-Identifier: Apache-2.0
"""The memory of one step after another of a compiled model.

    memory = StepMemory(device)
    memory.begin()               # a step
    memory.forward()             # a forward of it begins
    memory.entered()             # a graph is called
    memory.handed(out, args)     # it has returned; what follows is outside, until a backward
    memory.keep_peak()           # what comes next is the optimizer
    with memory.aside(): ...     # what compiles, or compares: no other step does it
    memory.optimizer_ended()
    memory.own_peak()            # of the step so far, without what was aside
    memory.peak()                # with it

Without an exact meter the peaks are 0, and a line says why once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.internals import guard
from reprise.torch.internals.ops import outputs_in
from reprise.torch.joint.graph_check import in_backward, node_of
from reprise.torch.joint.joint_graph import BackwardMemory, Peaks
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.room import room_on
from reprise.torch.meter.state import open_meter, start_counting

_ACCUMULATES = "torch::autograd::AccumulateGrad"


class StepMemory:
    """Measures the steps of one job."""

    def __init__(self, device: torch.device) -> None:
        self.meter = _exact_meter(device)
        self.began_live = 0  # bytes alive when the step began
        # So many more that no graph shows, in a forward; of the present one; and what was alive
        # when its last graph had returned.
        self.held_bytes = self._beside = self._left_live = 0
        # Peaks before the last graph of a forward has returned, from there to the first backward of
        # a graph, and after that; what the program makes in between, which no graph shows.
        self.peaks = Peaks()
        self.outside_bytes = 0
        self.outputs_die = False  # before the backward reaches the graph
        self._turn = 0  # of graphs that have returned; 0: a backward is under way
        self._handles: list[Any] = []  # of hooks in nodes that may outlive the step
        self._outputs: list[weakref.ref[Any]] = []  # of the last forward
        self.backwards: list[BackwardMemory] = []  # of its graphs, in the order of their calls
        self.optimizer_peak = 0  # of the step so far, in its optimizers
        self.aside_peak = 0  # of the step so far, in what only this step does

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
        self.optimizer_peak = self.aside_peak = self.outside_bytes = self._turn = 0
        self.held_bytes = 0
        self.peaks = Peaks()
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def returned(self, outputs: list[Tensor]) -> None:
        """Notes what a forward of the step has returned."""
        self._outputs = [weakref.ref(t.untyped_storage()) for t in outputs]

    def forward(self) -> None:
        """Notes that a forward of a step begins, with gradients of those before it."""
        self.keep_peak()
        self.backwards = []
        if self.meter is not None:
            self._left_live = self.meter.live()
            self._beside = self._left_live - self.began_live

    def entered(self) -> None:
        """Notes that a graph is called. What the program has made since the last one is in none,
        and what it still has of that it holds during the rest of the forward."""
        if self.meter is not None and torch.is_grad_enabled() and not in_backward():
            self._beside += self.meter.live() - self._left_live
            self.held_bytes = max(self.held_bytes, self._beside)

    def handed(self, out: Any, args: Iterable[Any]) -> None:
        """Notes what a graph has returned. What the program does from here to the first backward of
        a graph is in no graph, if this one was the last."""
        meter = self.meter
        if meter is None or not torch.is_grad_enabled() or in_backward():
            return
        peaks = self.peaks
        # What lay between two graphs, or before the first one, is the forward's.
        peaks.forward = max(peaks.forward, self.beside())
        self._turn = turn = self._turn + 1
        backward = BackwardMemory()
        self.backwards.append(backward)
        live = self._left_live = meter.live()
        own = sum(t.untyped_storage().nbytes() for t in outputs_in(out) if t.requires_grad)

        def arrived(_: Any) -> None:
            backward.began_live = meter.live()
            if self._turn != turn:
                backward.before_peak = self.beside()
                peaks.backward = max(peaks.backward, backward.before_peak)
                return
            self._turn = 0
            highest = self.beside()
            peaks.outside = max(peaks.outside, highest)
            self.outside_bytes = max(self.outside_bytes, 1, highest - live - own)
            self.outputs_die = all(known() is None for known in self._outputs)

        def returned(_: Any) -> None:
            if not backward.ended_live:
                self.keep_peak()
                backward.ended_live = meter.live()

        node = node_of(out, args)
        if node is not None:
            node.register_prehook(guard.quiet(arrived))
            # A hook after the node would keep what the node reads alive while it runs.
            for following, _ in node.next_functions:
                if following is not None and following.name() == _ACCUMULATES:
                    handle = following.register_prehook(guard.quiet(returned))
                    self._handles.append(handle)

    def keep_peak(self) -> None:
        """Notes the peak so far, of a backward if there was one, because what comes next is a
        forward, an optimizer or beside the step."""
        self.peaks.backward = max(self.peaks.backward, self.beside())

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Surrounds what no other step does: compiling, comparing. Its peak is kept apart."""
        self.keep_peak()
        try:
            yield
        finally:
            self.aside_peak = max(self.aside_peak, self.beside())

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
        return max(self.own_peak(), self.aside_peak)

    def own_peak(self) -> int:
        """Returns the same without what only this step does."""
        now = 0 if self.meter is None else self.meter.peak()
        return max(self.peaks.highest, self.optimizer_peak, now)

    def stop(self) -> None:
        """Removes the hooks and the meter; no step is measured any more."""
        self._remove_hooks()
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
