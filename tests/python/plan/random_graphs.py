# SPDX-License-Identifier: Apache-2.0
"""Random step graphs that use every field, and valid or almost valid schedules for them."""

from __future__ import annotations

import random

from reprise.plan import FreePolicy, StepGraph, with_frees


def random_graph(pick: random.Random, ops: int = 12, windows: bool = False) -> StepGraph:
    graph = StepGraph("random", static_bytes=pick.randrange(1, 100))
    for o in range(ops):
        known = range(len(graph.storages))
        reads = pick.sample(known, min(len(known), pick.randrange(4)))
        mutates = [s for s in reads if pick.random() < 0.15]
        made = [
            graph.storage(
                pick.randrange(1000),
                release_op=pick.randrange(o, ops) if pick.random() < 0.3 else None,
                pinned=pick.random() < 0.1,
            )
            for _ in range(pick.choice([1, 1, 1, 2]))
        ]
        graph.op(
            f"op{o}",
            reads,
            made,
            mutates=mutates,
            time_ns=pick.randrange(100),
            workspace_bytes=pick.randrange(200),
            phase="forward" if o < ops * 0.5 else "backward",
            kind=pick.choice(["pure"] * 6 + ["seeded", "once", "collective", "view"]),
            again_ns=pick.choice([0, 0, pick.randrange(1, 50)]),
            state_bytes=pick.randrange(300),
            replay_point=pick.random() < 0.7,
            replay_windows=_windows(pick, ops) if windows and pick.random() < 0.3 else (),
        )
    graph.require(*pick.sample(range(len(graph.storages)), 2))
    return graph


def _windows(pick: random.Random, ops: int) -> list[int]:
    """Returns the first and last ops of one or two windows."""
    return sorted(pick.sample(range(ops), 2 * pick.choice([1, 2])))


def random_schedule(pick: random.Random, graph: StepGraph, policy: FreePolicy) -> list[int]:
    """Returns the base order with some ops repeated and frees by the policy, and sometimes a
    mistake."""
    order: list[int] = []
    for o in range(len(graph.ops)):
        if o >= len(graph.ops) // 2 and pick.random() < 0.4:
            order += sorted(pick.sample(range(o), pick.randrange(1, 3)))
        order.append(o)
    schedule = with_frees(graph, order, policy)
    for _ in range(pick.choice([0, 0, 1])):
        at = pick.randrange(len(schedule))
        if pick.random() < 0.5:
            del schedule[at]
        else:
            schedule.insert(pick.randrange(len(schedule)), schedule[at])
    return schedule
