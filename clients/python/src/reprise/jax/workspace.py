# SPDX-License-Identifier: Apache-2.0
"""What single clusters take while they run, as XLA says: matrix products, convolutions and loops
are compiled by themselves, each kind and shape once per process, and only where that decides
whether a plan fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from reprise.jax.captured import CapturedStep
from reprise.jax.clusters import Cluster, Clusters
from reprise.jax.compiled import compiler_options, measured
from reprise.jax.kinds import LOOPS
from reprise.jax.program import bytes_of
from reprise.jax.rewrite import run_cluster
from reprise.plan import evaluate

# Of what the step holds: what is smaller is not worth a compilation.
_SMALLEST_SHARE = 256

# These rarely need more than what they read and write once more.
_MODEST = {"dot_general", "conv_general_dilated", "scan"}

_known: dict[Any, int] = {}


class Workspaces:
    """Temporary bytes of the clusters of a step. `total_bytes`: of the whole step, compiled without
    a plan."""

    def __init__(self, step: CapturedStep, total_bytes: int) -> None:
        self._step = step
        # By op whose workspace is not known: what is equal for clusters that compile to the same,
        # and the bytes that it reads and writes.
        self._open: dict[int, tuple[Any, int]] = {}
        avals = step.clusters.program.avals
        for at, one in enumerate(step.clusters.order):
            heavy = {e.name for e in one.equations if e.name not in LOOPS}
            if not heavy or any(e.has_effect for e in one.equations):
                continue
            moved = sum(bytes_of(avals[v]) for v in (*one.reads, *one.writes))
            if moved >= total_bytes // _SMALLEST_SHARE:
                self._open[at] = _key(step.clusters, one), moved
                if heavy - _MODEST:
                    self._compile(at)
        self._fill()

    def measure(self, schedule: Sequence[int], limit: int) -> bool:
        """Compiles the clusters that could exceed `limit` bytes in a schedule if each needed what
        it reads and writes once more, and puts what they and their equals need into the graph.
        Returns whether the schedule exceeds the limit then."""
        graph, runs = self._step.graph, [entry for entry in schedule if entry >= 0]
        for at, taken in zip(runs, evaluate(graph, schedule).bytes_at, strict=True):
            if at in self._open and taken + self._open[at][1] > limit:
                self._compile(at)
        return self._fill() and evaluate(graph, schedule).peak_bytes > limit

    def _compile(self, at: int) -> None:
        key, _ = self._open[at]
        if key not in _known:
            _known[key] = _measured(self._step.clusters, self._step.clusters.order[at])

    def _fill(self) -> bool:
        """Puts what is known into the graph. Returns whether that was anything."""
        ready = {at: _known[key] for at, (key, _) in self._open.items() if key in _known}
        for at, needed in ready.items():
            del self._open[at]
            self._step.graph.ops[at].workspace_bytes = needed
        return any(ready.values())


def _measured(clusters: Clusters, one: Cluster) -> int:
    shapes = []
    for value in one.reads:
        aval = clusters.program.avals[value]
        shapes.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype))

    def run(*given: Any) -> list[Any]:
        return run_cluster(clusters, one, dict(zip(one.reads, given, strict=True)))

    try:
        return measured(run, shapes, options=compiler_options(), roughly=True).temporaries
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
