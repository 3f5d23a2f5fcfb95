# SPDX-License-Identifier: Apache-2.0
"""A traced step as the planner reads it: one op per cluster, one storage per array that XLA keeps
between clusters.

Arguments and results are static memory: XLA has their buffers from the first instruction to the
last. Times are estimates, from floating point operations and bytes; they rank what is cheap to run
again and are no prediction in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reprise.jax.clusters import Cluster, Clusters
from reprise.jax.kinds import flops_of, kind_of
from reprise.jax.program import bytes_of
from reprise.plan.step_graph import StepGraph

# Of a core that computes while its memory is busy: what ranks ops, not what times them.
_FLOPS_PER_NS, _BYTES_PER_NS, _START_NS = 20, 5, 1000


@dataclass(slots=True)
class CapturedStep:
    """The step graph, and what its numbers stand for."""

    graph: StepGraph
    clusters: Clusters
    # By value: its storage.
    storage_of: dict[int, int] = field(default_factory=dict)


def capture(clusters: Clusters, static_bytes: int, name: str) -> CapturedStep:
    """Returns the step graph of a program, without workspaces. `static_bytes`: of arguments and
    results."""
    program = clusters.program
    note = f"{len(clusters.order)} clusters of equations: bounds and refusals are about these"
    graph = StepGraph(name, static_bytes=static_bytes, flavour="jax", note=note)
    step = CapturedStep(graph, clusters)
    results = set(clusters.needed(program.results)[1])
    for one in clusters.order:
        for value in one.writes:
            step.storage_of[value] = graph.storage(
                0 if value in results else bytes_of(program.avals[value]),
                str(program.avals[value]),
                category="gradient" if one.backward else "activation",
                pinned=value in results,
            )
        last = one.equations[-1]
        graph.op(
            last.name,
            [step.storage_of[v] for v in one.reads if v in step.storage_of],
            [step.storage_of[v] for v in one.writes],
            time_ns=_time(clusters, one),
            phase="backward" if one.backward else "forward",
            kind=next((k for k in map(kind_of, one.equations) if k != "pure"), "pure"),
            module=last.scope,
        )
    graph.require(*(step.storage_of[v] for v in sorted(results) if v in step.storage_of))
    return step


def _time(clusters: Clusters, one: Cluster) -> int:
    flops = sum(flops_of(equation.eqn) for equation in one.equations)
    moved = sum(bytes_of(clusters.program.avals[v]) for v in (*one.reads, *one.writes))
    return _START_NS + flops // _FLOPS_PER_NS + moved // _BYTES_PER_NS
