# SPDX-License-Identifier: Apache-2.0
"""The executor of eager models: it runs plans of captured steps on the tape.

executor = TapeExecutor(device, traces_kernels)
text = executor.capabilities(graph)      # with what the tape costs on this machine
planned = executor.install(graph, plan)
run = planned.tape.begin()               # a step
planned.remove()
text += executor.link().capabilities()   # with host memory, if the job may use it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.plan import Plan
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.executor.protocol import StepStats
from reprise.torch.internals.ops import OpKind
from reprise.torch.offload.tier import Tier, tier_of
from reprise.torch.tape.compile_plan import compile_plan
from reprise.torch.tape.costs import Costs, measured_costs
from reprise.torch.tape.launches import launch_ns, launches
from reprise.torch.tape.link import Link, link_to
from reprise.torch.tape.program import FETCHED
from reprise.torch.tape.state_groups import groups_of, movable
from reprise.torch.tape.tape import Tape
from reprise.torch.tape.tape_run import Run


@dataclass(eq=False)
class TapePlan:
    """A plan that the tape runs, until it is removed."""

    graph: CapturedGraph
    plan: Plan
    tape: Tape | None  # None: removed
    _state: Sequence[int] = ()  # bytes of groups of optimizer state that it may send to the host
    # What the newest step did that left the plan, and the run that took the place of its own.
    _left: tuple[StepStats, Run] | None = None

    def ended(self) -> None:
        """Lets go of the run of a step that is over and has left the plan. What it has recorded
        lives on as long as the step's graph, and no longer."""
        if self.tape is not None and not self.tape.run.armed:
            self._left = self.stats(), self.tape.begin()

    def stats(self) -> StepStats:
        """Returns what the newest step under the plan did."""
        if self.tape is None:
            return StepStats()
        run = self.tape.run
        if self._left is not None and run is self._left[1]:
            return self._left[0]
        counts = run.counts
        fetched = 0 if run.parked is None else run.parked.fetched
        return StepStats(
            recomputed=counts.replayed + counts.on_demand - fetched,
            mismatches=min(counts.mismatches, 1),  # a step leaves its plan once
            kept_all=not run.armed,
        )

    @property
    def bytes_on_host(self) -> int:
        """The bytes that a step sends to host memory."""
        tape = self.tape
        return 0 if tape is None else sum(place.bytes for place in tape.program.places.values())

    def host_sentence(self) -> str:
        """Returns what the plan has from host memory, in a sentence."""
        if self.tape is None or not self.bytes_on_host:
            return "offload gains nothing here: the plan recomputes all that it discards"
        again = {
            storage
            for burst in self.tape.program.bursts
            for replay in burst
            if replay.op < FETCHED
            for storage in replay.keep
        }
        recomputed = sum(self.graph.storages[storage].bytes for storage in again)
        state = sum(place.bytes for place in self.tape.program.state.values())
        of_it = f" ({format_bytes(state)} of it optimizer state)" if state else ""
        return (
            f"{format_bytes(self.bytes_on_host)} go to the host{of_it}, {format_bytes(recomputed)} "
            "are recomputed"
        )

    def graph_json(self) -> bytes:
        """Returns the step graph of the plan, as it was sent to the planner."""
        message = movable(self.graph.message(), self._state)
        return json.dumps(message, separators=(",", ":")).encode()

    def remove(self) -> None:
        """Lets the tape go: no step begins on it from now on. A step under way keeps its run."""
        self.tape = None


class TapeExecutor:
    """Runs the steps of one eager model op by op."""

    def __init__(
        self,
        device: torch.device,
        traces_kernels: Callable[[], bool],
        costs: Costs | None = None,
        host_bytes: int = 0,
    ) -> None:
        """`device`: where the model is; `traces_kernels`: whether op times are those of kernels on
        a GPU; `costs`: None if they are to be measured with the first graph; `host_bytes`: how much
        host memory plans may use."""
        self._device = device
        self._host_bytes = host_bytes
        self._link: Link | None = None
        self._tier: Tier | None = None
        self._traces_kernels = traces_kernels
        self._costs = costs
        self._state: tuple[int, ...] = ()  # bytes of groups of optimizer state that plans may send

    def capabilities(self, graph: CapturedGraph) -> str:
        """Returns the executor as the server reads it. The tape costs what it costs on a machine as
        busy as the one on which the graph's ops were timed; a replay on a GPU, whose op takes what
        its kernels take, the launch too."""
        step = graph.step
        if self._costs is None:
            self._costs = measured_costs(_touched_bytes(step))
        replay_ns = int(self._costs.replay_ns * step.stretched)
        if self._device.type == "cuda" and self._traces_kernels():
            replay_ns += launch_ns(step, graph.measured_step_ns, launches(self._device))
        return f"tape:seeded_ok=1:ns_per_op={replay_ns}"

    def link(self) -> Link:
        """Returns the link to host memory, measured the first time. Raises RepriseError if there is
        none here; `no_host` ends that."""
        if self._link is None:
            self._tier = tier_of(self._device)
            if self._tier is None:
                raise RepriseError(f"there is no link from {self._device} to host memory")
            self._link = link_to(self._tier, self._device, self._host_bytes)
        return self._link

    def with_state(
        self, message: dict[str, Any], optimizers: Sequence[Optimizer]
    ) -> dict[str, Any]:
        """Returns a step graph in which plans may send the state of optimizers to the host."""
        groups = groups_of(optimizers, self._device, self.least_bytes)
        self._state = tuple(sum(one.nbytes() for one in group) for group in groups)
        return movable(message, self._state)

    @property
    def least_bytes(self) -> int:
        """The size from which on a storage may be sent to host memory."""
        return 0 if self._tier is None else self._tier.least_bytes

    @property
    def uses_host(self) -> bool:
        """Whether plans may use host memory."""
        return self._host_bytes > 0

    def no_host(self) -> None:
        """Uses no host memory from now on: it failed."""
        self._host_bytes = 0

    def install(self, graph: CapturedGraph, plan: Plan) -> TapePlan:
        """Compiles a plan into a program of the tape. Raises RepriseError if the tape cannot run
        it."""
        program = compile_plan(graph, plan.schedule, self._state)
        if program.host_bytes > self._host_bytes:
            raise RepriseError(
                f"the plan needs {format_bytes(program.host_bytes)} of host memory in one block, "
                f"and {format_bytes(self._host_bytes)} are allowed"
            )
        tape = Tape(program, self._device, self._tier)
        return TapePlan(graph, plan, tape, self._state)

    def own_ns(self, planned: TapePlan, forward_ns: int) -> int:
        """Returns what a step under a plan costs beyond its ops: the tape's checks, and
        `forward_ns` for each forward of the model. What a replay costs is in the plan's time."""
        if planned.tape is None or self._costs is None:
            return 0
        forwards = len(planned.tape.program.regions)
        own_ns = self._costs.armed_ns(planned.tape) + forward_ns * forwards
        return int(own_ns * planned.graph.step.stretched)

    def replays_ns(self, planned: TapePlan) -> int:
        """Returns what the replays of a step cost beyond the ops that run again."""
        if planned.tape is None or self._costs is None:
            return 0
        program = planned.tape.program
        many = sum(len(program.replays_before(e)) for e in program.events if not e.copies)
        return int(self._costs.replay_ns * many * planned.graph.step.stretched)


def _touched_bytes(step: CapturedStep) -> int:
    """Returns how many bytes an op of the model's forward reads and writes: the mean of those that
    compute."""
    ops = [op for op in step.ops if op.in_region and op.kind != OpKind.VIEW]
    total = sum(s.bytes for op in ops for s in {*op.arguments, *op.writes})
    return total // max(1, len(ops))
