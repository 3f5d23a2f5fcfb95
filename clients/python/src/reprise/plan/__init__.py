# SPDX-License-Identifier: Apache-2.0
"""Plans for any step graph, without a framework: the neutral client.

    from reprise.plan import StepGraph, plan, report_step

    graph = StepGraph("my step", static_bytes=weights)
    x = graph.storage(4096, "x")
    graph.op("load", writes=[x], time_ns=900, kind="once")
    ...
    graph.require(gradient)

    answer = plan(graph, "0.5x", executor="free")      # InfeasibleBudget: with the proof
    for entry in answer.schedule: ...                  # e >= 0 runs op e, e < 0 frees storage -e-1
    report_step(answer, step=0, peak_bytes=measured, step_ns=took)

Needs the standard library alone, and a daemon, which is started where none answers. Importing it
opens nothing. docs/api.md tells the same in Python, C++ and curl.
"""

from __future__ import annotations

from reprise.agent.received import BoundProof, BoundScope, Decision, FreePolicy, Infeasible, Plan
from reprise.plan.asking import TradeoffPoint, plan, sweep
from reprise.plan.capabilities import Capabilities
from reprise.plan.evaluate import Evaluation, base_schedule, evaluate, with_frees
from reprise.plan.reporting import report_check, report_step
from reprise.plan.step_graph import Op, StepGraph, Storage

__all__ = [
    "BoundProof",
    "BoundScope",
    "Capabilities",
    "Decision",
    "Evaluation",
    "FreePolicy",
    "Infeasible",
    "Op",
    "Plan",
    "StepGraph",
    "Storage",
    "TradeoffPoint",
    "base_schedule",
    "evaluate",
    "plan",
    "report_check",
    "report_step",
    "sweep",
    "with_frees",
]
