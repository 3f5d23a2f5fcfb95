# SPDX-License-Identifier: Apache-2.0
"""The executor of eager models: it runs plans of captured steps on the tape.

executor = TapeExecutor(device, traces_kernels)
text = executor.capabilities(graph)      # with what the tape costs on this machine
planned = executor.install(graph, plan)
run = planned.tape.begin()               # a step
planned.remove()
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from reprise.plan import Plan
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.executor.protocol import StepStats
from reprise.torch.internals.ops import OpKind
from reprise.torch.tape.compile_plan import compile_plan
from reprise.torch.tape.costs import Costs, measured_costs
from reprise.torch.tape.launches import launch_ns, launches
from reprise.torch.tape.tape import Tape


class TapePlan:
    """A plan that the tape runs, until it is removed."""

    def __init__(self, graph: CapturedGraph, plan: Plan, tape: Tape) -> None:
        self.graph = graph
        self.plan = plan
        self.tape: Tape | None = tape  # None: removed

    def stats(self) -> StepStats:
        """Returns what the newest step under the plan did."""
        if self.tape is None:
            return StepStats()
        run = self.tape.run
        counts = run.counts
        return StepStats(
            recomputed=counts.replayed + counts.on_demand,
            mismatches=min(counts.mismatches, 1),  # a step leaves its plan once
            kept_all=not run.armed,
        )

    def graph_json(self) -> bytes:
        """Returns the step graph of the plan, as it was sent to the planner."""
        return self.graph.to_json()

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
    ) -> None:
        """`device`: where the model is; `traces_kernels`: whether op times are those of kernels on
        a GPU; `costs`: None if they are to be measured with the first graph."""
        self._device = device
        self._traces_kernels = traces_kernels
        self._costs = costs

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

    def install(self, graph: CapturedGraph, plan: Plan) -> TapePlan:
        """Compiles a plan into a program of the tape. Raises RepriseError if the tape cannot run
        it."""
        return TapePlan(graph, plan, Tape(compile_plan(graph, plan.schedule), self._device))

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
        many = sum(map(len, planned.tape.program.bursts))
        return int(self._costs.replay_ns * many * planned.graph.step.stretched)


def _touched_bytes(step: CapturedStep) -> int:
    """Returns how many bytes an op of the model's forward reads and writes: the mean of those that
    compute."""
    ops = [op for op in step.ops if op.in_region and op.kind != OpKind.VIEW]
    total = sum(s.bytes for op in ops for s in {*op.arguments, *op.writes})
    return total // max(1, len(ops))
