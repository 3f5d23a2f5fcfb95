# SPDX-License-Identifier: Apache-2.0
"""Allocator events and op records of the steps that pages draw, sent to the agent."""

from __future__ import annotations

from reprise.agent.agent import Agent
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import blocked
from reprise.torch.meter.windows import OpWindow
from reprise.torch.tape.tape_run import Run


class Tracing:
    """What is traced of the step under way."""

    def __init__(self, agent: Agent, meter: Meter) -> None:
        self._agent = agent
        self._meter = meter
        self._op_window: OpWindow | None = None
        self.on = False  # in this step; stays until the next begins
        self.ops = True  # may be recorded

    def begin(self, run: Run | None) -> None:
        """Begins to record op events; those of the replays of the run, too."""
        self.events()
        if self._op_window is None and self.ops and not blocked():
            self._op_window = OpWindow(self._agent)
            self._op_window.open()
            if run is not None:
                run.trace(self._op_window.recorder)

    def events(self) -> None:
        """Begins to record allocator events alone: a capture sends op records itself."""
        self.on = True
        self._meter.events_begin(self._agent)

    def end_ops(self) -> None:
        """Stops recording ops; allocations go on being recorded."""
        if self._op_window is not None:
            self._op_window.close()
            self._op_window = None

    def end(self) -> None:
        """Stops recording ops and allocations."""
        self.end_ops()
        if self.on:
            self._meter.events_end()
