# SPDX-License-Identifier: Apache-2.0
"""The peak of a joint graph when some of its ops are recomputed, as a partitioner does it.

    peak_under(message, {4, 7})      # bytes

The forward runs as it is and keeps what is not recomputed. Right before the first op of the
backward that needs something absent, everything missing for it runs again in the order of the
forward, and stays until its last reader. That is what the planner's executor `joint` does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from reprise.plan import Capabilities, StepGraph, evaluate, with_frees

# Whatever is recomputed was allowed by whoever chose it.
_ANYTHING = Capabilities(seeded_ok=True, collective_ok=True)


def peak_under(message: dict[str, Any], again: Collection[int]) -> int:
    """Returns the bytes at the peak of a step graph when the ops `again` run once more in the
    backward, and no others. `message`: the graph as it is sent to the planner."""
    graph = StepGraph.from_message(message)
    return evaluate(graph, with_frees(graph, _runs(graph, set(again))), _ANYTHING).peak_bytes


def _runs(graph: StepGraph, again: set[int]) -> list[int]:
    """Returns the ops in the order in which they run."""
    maker = {s: o for o, op in enumerate(graph.ops) for s in op.writes}
    absent = {s for o in again for s in graph.ops[o].writes}
    runs: list[int] = []
    for number, op in enumerate(graph.ops):
        if op.phase == "backward":
            missing: set[int] = set()
            todo = [s for s in op.reads if s in absent]
            while todo:
                made_by = maker[todo.pop()]
                if made_by not in missing:
                    missing.add(made_by)
                    todo += [s for s in graph.ops[made_by].reads if s in absent]
            runs += sorted(missing)
            absent.difference_update(*(graph.ops[o].writes for o in missing))
        runs.append(number)
    return runs
