# SPDX-License-Identifier: Apache-2.0
"""One cluster run: its equations bound again, on arrays or while JAX traces."""

from __future__ import annotations

from typing import Any

from reprise.jax.clusters import Cluster, Clusters

__all__ = ["run_cluster", "run_light"]


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
