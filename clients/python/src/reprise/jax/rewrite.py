# SPDX-License-Identifier: Apache-2.0
"""Runs a program by a schedule, and one cluster: the functions that XLA compiles.

Every cluster waits for the one before it: its inputs go through an optimization barrier together
with what that one made. Nothing that runs again is merged with its first run, nothing runs early,
and nothing is melted into something else that the plan has at another place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from reprise.jax.captured import CapturedStep
from reprise.jax.clusters import Cluster, Clusters

# XLA on the CPU keeps a table of pointers for each barrier until the end of the program.
TABLE_BYTES = 64


def planned(step: CapturedStep, schedule: Sequence[int]) -> Callable[..., list[Any]]:
    """Returns the program as a function of its flat arguments, in the order of a schedule."""
    clusters = step.clusters
    program = clusters.program
    value_of = {storage: value for value, storage in step.storage_of.items()}

    def run(*arguments: Any) -> list[Any]:
        now: dict[int, Any] = dict(program.constants)
        now.update(zip(program.inputs, arguments, strict=True))
        before: list[Any] = []
        for entry in schedule:
            if entry < 0:
                now.pop(value_of[-entry - 1], None)
                continue
            one = clusters.order[entry]
            given = [now[v] for v in one.reads]
            tied = jax.lax.optimization_barrier((given, before)) if before else (given, [])
            made = run_cluster(clusters, one, dict(zip(one.reads, tied[0], strict=True)))
            now.update(zip(one.writes, made, strict=True))
            # What makes nothing, as a callback, leaves the next one waiting for what was before.
            before = made or before
        run_light(clusters, program.results, now)
        return [now[v] if isinstance(v, int) else v.val for v in program.outputs]

    return run


def run_cluster(clusters: Clusters, one: Cluster, values: dict[int, Any]) -> list[Any]:
    """Returns what a cluster makes of the memory that it reads."""
    here = dict(values)
    for equation in one.equations:
        run_light(clusters, equation.reads, here)
        found = equation.run(*(here[v] for v in equation.reads))
        here.update((w, v) for w, v in zip(equation.writes, found, strict=True) if w is not None)
    return [here[w] for w in one.writes]


def run_light(clusters: Clusters, values: list[int], here: dict[int, Any]) -> None:
    """Makes views and spread scalars of what is in `here`."""
    for equation in clusters.needed([v for v in values if v not in here])[0]:
        made = equation.writes[0]
        if made is not None and made not in here:
            (here[made],) = equation.run(*(here[v] for v in equation.reads))
