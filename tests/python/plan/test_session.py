# SPDX-License-Identifier: Apache-2.0
"""Plans of a program that `reprise run` has started belong to its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reprise.plan.capabilities import EXECUTORS, Capabilities
from reprise.plan.session import capabilities_text

RUN = "01a208a1-5cd8-782a-ac12-289601840200"

PROGRAM = """
import sys
from reprise import InfeasibleBudget
from reprise.plan import StepGraph, plan, report_step
graph = StepGraph("layers", static_bytes=1000)
x, h, y, dh = (graph.storage(100, name) for name in ("x", "h", "y", "dh"))
graph.op("load", writes=[x], time_ns=1, kind="once")
graph.op("one", [x], [h], time_ns=10)
graph.op("two", [h], [y], time_ns=10)
graph.op("back", [x, h, y], [dh], time_ns=20, phase="backward")
graph.require(dh)
try:
    plan(graph, 1001)
except InfeasibleBudget as refusal:
    print(refusal)
found = plan(graph, "1x", "tf-graph")
report_step(found, step=0, peak_bytes=0, step_ns=40, wait=False)
print(found.plan_id)
"""


@pytest.mark.parametrize("name", EXECUTORS)
def test_the_agent_reads_the_same_capabilities_as_a_server(name: str) -> None:
    meant = Capabilities.of(f"{name}:ns_per_op=7:seeded_ok=1" if name else "free:max_runs=3")

    read = Capabilities.of(capabilities_text(meant))

    assert replace(read, executor="") == replace(meant, executor="")


def test_a_program_of_reprise_run_has_its_plan_and_steps_in_that_run(
    reprised: Callable[[], Any], python: Any, agent_library: Any
) -> None:
    daemon = reprised()

    done = python(
        *("-c", PROGRAM),
        REPRISE_SOCKET=str(daemon.socket),
        REPRISE_RUN_ID=RUN,
        REPRISE_AGENT=str(agent_library),
    )

    assert done.returncode == 0, done.stderr
    refusal, plan_id = done.stdout.splitlines()
    assert refusal.startswith("Nothing fits in 1001 B")
    run = daemon.query("GetRun", {"runId": RUN})
    assert run["planId"] == plan_id
    assert run["graphId"]
    assert run["verdict"]["plannedSteps"] == 1
    # A step that was not measured claims no peak.
    assert "measuredPeakBytes" not in run["verdict"]
