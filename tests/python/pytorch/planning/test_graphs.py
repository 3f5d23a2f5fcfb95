# SPDX-License-Identifier: Apache-2.0
"""What a step without a plan takes, by steps under a plan made from shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from reprise.torch.planning.graphs import Graphs
from reprise.torch.training.measure import Steps


def op(name: str, time_ns: int, again_ns: int = 0) -> Any:
    return SimpleNamespace(name=name, time_ns=time_ns, again_ns=again_ns, in_region=True)


def test_what_a_plan_from_shapes_ran_again_took_no_shortcut() -> None:
    # Its graph knows of none: the mask of a dropout was drawn again, which the captured step shows
    # how to avoid.
    known = SimpleNamespace(step=SimpleNamespace(ops=[op("linear", 0), op("dropout", 0)]))
    plan = SimpleNamespace(schedule=[0, 1, -1, 1])
    rung = SimpleNamespace(plan=plan, sketch=True, number=3, graph=known, own_ns=50)
    job: Any = SimpleNamespace(
        plans=SimpleNamespace(rung=rung),
        measured=SimpleNamespace(under=lambda number: {3: Steps(times_ns=[3_000])}[number]),
    )
    captured: Any = SimpleNamespace(ops=[op("linear", 1_000), op("dropout", 600, again_ns=10)])
    op_times: Any = None

    found = Graphs(job, op_times)._unplanned_ns(captured)

    assert found == 3_000 - 50 - 600
