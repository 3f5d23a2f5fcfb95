# SPDX-License-Identifier: Apache-2.0
"""Plans of a job that `reprise run` has started: they belong to its run.

Without this, each graph is a run of its own. Here the graph goes to the daemon through the agent,
which knows the run from `REPRISE_RUN_ID`; so the run's page and verdict have the plan, and the
steps that `report_step` reports.
"""

from __future__ import annotations

import json
import os

from reprise.agent.received import InfeasibleBudget, Plan
from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.plan.capabilities import Capabilities
from reprise.plan.graph_message import graph_message
from reprise.plan.sent import LONGEST_S
from reprise.plan.step_graph import StepGraph

__all__ = ["capabilities_text", "is_within_run", "plan_within_run"]


def is_within_run() -> bool:
    """Returns whether `reprise run` has started this process, and no other part of it reports to
    the run."""
    if not os.environ.get("REPRISE_RUN_ID") or os.environ.get("REPRISE_SERVER"):
        return False
    from reprise.agent.agent import Agent
    from reprise.plan.session import reports

    live = Agent.live()
    return live is None or reports(live)


def plan_within_run(
    graph: StepGraph, budget: str, executor: Capabilities, reserve_bytes: int = 0
) -> Plan:
    """Returns a plan of the run. Raises as `reprise.plan.plan`."""
    from reprise.plan.session import agent_of

    message = json.dumps(graph_message(graph)).encode()
    agent = agent_of(None, graph.name)
    if agent.status == "inert":
        raise ServerUnavailable(agent.why)
    request = agent.submit_graph(
        message,
        budget,
        capabilities_text(executor),
        graph.static_bytes,
        reserve_bytes=reserve_bytes,
    )
    if request is None:
        raise ServerUnavailable(agent.why)
    reply = agent.wait_plan(request, timeout_s=LONGEST_S)
    if reply.plan is not None and reply.plan.feasible:
        return reply.plan
    if reply.plan is not None:
        raise InfeasibleBudget(reply.plan.sentence, reply.smallest_budget, reply.plan)
    if reply.kind == "refused" and reply.smallest_budget is not None:
        raise InfeasibleBudget(reply.why, reply.smallest_budget)
    if reply.kind == "refused":
        raise RepriseError(reply.why)
    raise ServerUnavailable(reply.why or f"no plan has come within {LONGEST_S:.0f} s")


def capabilities_text(executor: Capabilities) -> str:
    """Returns capabilities as the agent takes them: a name, and keys that refine it."""
    base = Capabilities.of(executor.execution)
    keys = [executor.execution]
    for name in ("recompute_in_backward_only", "seeded_ok", "collective_ok", "duplicate_outputs"):
        if getattr(executor, name) != getattr(base, name):
            keys.append(f"{name}={int(getattr(executor, name))}")
    for name in ("max_runs", "ns_per_op"):
        if getattr(executor, name) != getattr(base, name):
            keys.append(f"{name}={getattr(executor, name)}")
    if executor.free_policy != base.free_policy:
        keys.append(f"free_policy={executor.free_policy.name.lower()}")
    return ":".join(keys)
