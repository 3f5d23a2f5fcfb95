# SPDX-License-Identifier: Apache-2.0
"""What single clusters take while they run, as XLA says: matrix products, convolutions and loops
are compiled by themselves, each kind and shape once per process."""

from __future__ import annotations

from typing import Any

import jax

from reprise.jax.clusters import Cluster, Clusters
from reprise.jax.compiled import compile_flat, memory_of
from reprise.jax.kinds import is_loop
from reprise.jax.program import bytes_of
from reprise.jax.running import run_cluster

__all__ = ["Workspaces"]

# Of what the step holds: what is smaller is not worth a compilation.
_SMALLEST_SHARE = 256

_known: dict[Any, int] = {}


class Workspaces:
    """Temporary bytes of clusters. `total_bytes`: of the whole step, compiled without a plan."""

    def __init__(self, total_bytes: int) -> None:
        self._smallest = total_bytes // _SMALLEST_SHARE

    def of(self, clusters: Clusters, one: Cluster) -> int:
        """Returns the bytes that a cluster needs beside what it reads and writes."""
        if all(is_loop(equation) for equation in one.equations):
            return 0
        avals = clusters.program.avals
        if sum(bytes_of(avals[v]) for v in (*one.reads, *one.writes)) < self._smallest:
            return 0
        if any(equation.has_effect for equation in one.equations):
            return 0
        key = _key(clusters, one)
        if key not in _known:
            _known[key] = _measured(clusters, one)
        return _known[key]


def _measured(clusters: Clusters, one: Cluster) -> int:
    shapes = []
    for value in one.reads:
        aval = clusters.program.avals[value]
        shapes.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype))

    def run(*given: Any) -> list[Any]:
        return run_cluster(clusters, one, dict(zip(one.reads, given, strict=True)))

    try:
        return memory_of(compile_flat(run, shapes)).temporaries
    except Exception:
        # A collective outside of its mesh, say: then the whole program's figure has the last word.
        return 0


def _key(clusters: Clusters, one: Cluster) -> Any:
    """Returns what is equal for clusters that compile to the same."""
    numbers: dict[int, int] = {}

    def number(value: int) -> int:
        return numbers.setdefault(value, len(numbers))

    avals = clusters.program.avals
    said: list[Any] = [jax.default_backend()]
    for equation in one.equations:
        for each in (*clusters.needed(equation.reads)[0], equation):
            said.append(
                (
                    each.name,
                    str(each.eqn.params),
                    tuple((number(v), str(avals[v])) for v in each.reads),
                    tuple(number(w) for w in each.writes if w is not None),
                    tuple(str(v) for v in each.eqn.invars if hasattr(v, "val")),
                )
            )
    return (*said, tuple(number(w) for w in one.writes))
