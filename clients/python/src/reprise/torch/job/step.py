# SPDX-License-Identifier: Apache-2.0
"""The step under way, as data: what is known of it while it runs, and after it until the next."""

from __future__ import annotations

from torch.optim import Optimizer

from reprise.torch.capture.capture import Capture
from reprise.torch.check.verify import Check
from reprise.torch.internals.optimizers import Cycle
from reprise.torch.job.tracing import Tracing
from reprise.torch.ladder.rung import Key
from reprise.torch.meter.step_times import StepTimes
from reprise.torch.tape.tape_run import Run


class Step:
    """The newest step of one model. Its session moves it on (session/steps.py); others read it."""

    def __init__(self, times: StepTimes, tracing: Tracing) -> None:
        self.number = 0
        self.ended = 0  # how many steps are over
        self.key = Key((), ())  # of its largest micro-batch so far
        self.under_way = False
        self.in_forward = False
        self.in_optimizer = False
        self.out_of_memory = False  # memory ran out in it
        self.capture: Capture | None = None  # None: it is not captured
        self.run: Run | None = None  # None: it is not planned
        self.check: Check | None = None  # of its gradients; None: they are not compared
        self.live_begin = 0  # bytes alive when it began
        self.peak = 0  # bytes, before the meter was last reset
        self.forwards = 0
        self.cycle = Cycle()
        self.times = times
        self.tracing = tracing

    def stop_check(self) -> None:
        """Ends the comparison of this step's gradients."""
        check, self.check = self.check, None
        if check is not None:
            check.stop()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that have stepped for this model."""
        return self.cycle.optimizers
