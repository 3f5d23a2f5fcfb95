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
from reprise.torch.internals import guard
from reprise.torch.meter.meter import Meter
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
