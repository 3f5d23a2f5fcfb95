# SPDX-License-Identifier: Apache-2.0
"""The agent through which a program without a framework's adapter reports: one per process, in one
run at a time.

A job that `reprise run` has started asks for its plans through it, too. Otherwise each graph is a
run of its own; the agent knows the job's run from `REPRISE_RUN_ID`, so that the run's page and
verdict have the plan, and the steps that `report_step` reports.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import TYPE_CHECKING, Any

from reprise.agent.received import InfeasibleBudget, Plan
from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.plan.capabilities import FLAGS, MOST, Capabilities
from reprise.plan.server import LONGEST_S
from reprise.plan.step_graph import StepGraph

if TYPE_CHECKING:
    from reprise.agent.agent import Agent


_agent: Agent | None = None


def current() -> Agent | None:
    """Returns the agent that reports now, if there is one."""
    return _agent


def agent_of(run: str | None, name: str = "step graph") -> Agent:
    """Returns the agent whose reports belong to `run`; None: to the newest one, or to that of
    `reprise run`. Raises RepriseError if another part of this process reports."""
    global _agent
    from reprise.agent.agent import Agent

    live = Agent.live()
    if live is not None and live is not _agent:
        raise RepriseError(
            f"this process has a job that reports to run {live.run_id}; report the steps of a step "
            "graph from another process"
        )
    # A process has one session at a time.
    if _agent is not None and run not in (None, _agent.run_id):
        close()
    if _agent is None:
        _, _agent = Agent.connect({"name": os.environ.get("REPRISE_NAME") or name}, run)
        atexit.register(_agent.stop)  # else the run would count as killed
    return _agent


def close() -> None:
    """Ends the session."""
    global _agent
    if _agent is not None:
        _agent.stop()
        _agent = None


def is_within_run() -> bool:
    """Returns whether `reprise run` has started this process, and no other part of it reports to
    the run."""
    if not os.environ.get("REPRISE_RUN_ID") or os.environ.get("REPRISE_SERVER"):
        return False
    from reprise.agent.agent import Agent

    live = Agent.live()
    return live is None or live is _agent


def plan_within_run(
    graph: StepGraph, budget: str, executor: Capabilities, reserve_bytes: int = 0
) -> Plan:
    """Returns a plan of the run. Raises as `reprise.plan.plan`."""
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
    for name in (*FLAGS, *MOST):
        if getattr(executor, name) != getattr(base, name):
            keys.append(f"{name}={int(getattr(executor, name))}")
    if executor.free_policy != base.free_policy:
        keys.append(f"free_policy={executor.free_policy.name.lower()}")
    return ":".join(keys)


def graph_message(graph: StepGraph) -> dict[str, Any]:
    """Returns a graph as a message of reprise.v1.StepGraph: that of its file, whose words are
    enums. Raises RepriseError with the path of the first field that the planner would refuse."""
    message = graph.to_object()
    for storage in message["storages"]:
        storage["category"] = f"CATEGORY_{storage['category'].upper()}"
    for op in message["ops"]:
        op["phase"], op["kind"] = f"PHASE_{op['phase'].upper()}", f"OP_KIND_{op['kind'].upper()}"
    return message
