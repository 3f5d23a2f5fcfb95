# SPDX-License-Identifier: Apache-2.0
"""Step graphs of captured steps, with what was measured of plain steps.

    graph, left_out, leaks = Graphs(job, op_times).made(step, key, is_stale=False, several=False)

The planner compares a plan with a step that nobody watches. So the graph has the peak and the time
of plain steps with the same input; where there was none, those of the captured step, at the speed
of plain ones. Where every step so far ran under a plan made from shapes, a plain one takes what
those took, less what the plan made them do twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from reprise.torch.capture.captured import FORWARD, CapturedStep, CapturedStorage
from reprise.torch.capture.step_graph import CapturedGraph, build, settle
from reprise.torch.internals.ops import OpKind
from reprise.torch.internals.subclass import is_wrapper
from reprise.torch.job.job import EagerJob
from reprise.torch.job.stages import Stages
from reprise.torch.ladder.rung import Key
from reprise.torch.planning.op_times import OpTimes


class Made(NamedTuple):
    """The graph of a captured step, and what checks of gradients need to know of it."""

    graph: CapturedGraph
    left_out: frozenset[str]  # parameters that the program reads outside the model's forward
    leaks: bool  # no rank can compare gradients


class Graphs:
    """Makes the step graphs of one session."""

    def __init__(self, job: EagerJob, op_times: OpTimes) -> None:
        self._job = job
        self._op_times = op_times
        self._op_scale = 1.0  # time of a plain step / ops of a captured one

    def made(self, step: CapturedStep, key: Key, *, is_stale: bool, several: bool) -> Made:
        """Returns the graph of a step with this input. `is_stale`: the step has changed since it
        was captured before; `several`: steps with this input run several programs."""
        measured = self._job.measured
        # The op times are to be of the same machine as the plain steps they are compared with.
        step.stretch(measured.like(key).stretched or step.stretched)
        self._op_times.apply(step, key)
        settle(step)
        if is_stale or step.varies:
            measured.raise_base(key, step.peak_bytes)
        if not step.varies:  # else it is planned for the largest
            measured.take_like(key, step.peak_bytes, several)
        outside = {
            id(s) for op in step.ops if op.phase == FORWARD and not op.in_region for s in op.reads
        }
        read = [s for s in step.storages if id(s) in outside]
        left_out = frozenset(s.name for s in read if s.name)
        return Made(self._graph(step, key), left_out, self._leaks(step, read))

    def _graph(self, step: CapturedStep, key: Key) -> CapturedGraph:
        """Returns the graph, with the peak and the time of a plain step."""
        job, measured = self._job, self._job.measured
        ops_ns = sum(op.time_ns for op in step.ops)
        peak, plain_ns = measured.base(key)
        if plain_ns and ops_ns:
            self._op_scale = plain_ns / ops_ns
        elif step.apart:
            plain_ns = self._unplanned_ns(step) or int(ops_ns * self._op_scale)
        elif not plain_ns:
            # No plain step with this input was measured: from the ops of the captured one.
            peak, plain_ns = step.peak_bytes, int(ops_ns * self._op_scale)
            measured.set_base(key, peak, plain_ns)
        graph = build(
            step, name=job.options.name, measured_peak_bytes=peak, measured_step_ns=plain_ns
        )
        if step.apart and not peak:
            # As if everything had stayed on the device.
            peak = graph.base_peak_bytes()
            graph = replace(graph, measured_peak_bytes=peak)
            measured.set_base(key, peak, plain_ns)
        return graph

    def _unplanned_ns(self, step: CapturedStep) -> int:
        """Returns what a step without a plan takes, by the steps that ran under one made from
        shapes; 0 if it cannot be said."""
        rung = self._job.plans.rung
        if rung is None or rung.plan is None or not rung.sketch:
            return 0
        took = self._job.measured.under(rung.number).step_ns
        numbers = [n for n, op in enumerate(rung.graph.step.ops) if op.in_region]
        ops = [op for op in step.ops if op.in_region]
        if not took or [rung.graph.step.ops[n].name for n in numbers] != [op.name for op in ops]:
            return 0
        runs = Counter(entry for entry in rung.plan.schedule if entry >= 0)
        # A plan from shapes knew of no shortcut, and took none.
        again = sum(
            (runs[n] - 1) * op.time_ns for n, op in zip(numbers, ops, strict=True) if runs[n] > 1
        )
        took -= rung.own_ns
        # Ops take longer where each is timed from Python: their share of the step counts.
        once = sum(op.time_ns for op in step.ops)
        return max(0, took - again, took * once // max(1, once + again))

    def _leaks(self, step: CapturedStep, read: list[CapturedStorage]) -> bool:
        """Returns whether gradients cannot be compared: ranks talk to each other in the forward, or
        a gradient is in pieces on several of them, so that a forward more on one of them would wait
        for the others; or the model hands out more than its outputs. `read`: the storages that the
        program reads outside the model's forward."""
        talks = any(op.in_region and op.kind is OpKind.COLLECTIVE for op in step.ops)
        return (
            talks
            or any(s.in_region and not s.pinned for s in read)
            or any(map(is_wrapper, self._job.model.parameters()))
            or isinstance(self._job.model, Stages)
        )
