# SPDX-License-Identifier: Apache-2.0
"""A question to the planner outside of a job: a step graph and a budget, and its answer.

plan, why, refused = asked(message, "20GiB")
other, why = replacement(message, plan, more_bytes)      # the plan needs more than it says
"""

from __future__ import annotations

import json
from typing import Any

from reprise.agent.agent import Agent
from reprise.plan import Plan

WAIT_S = 60.0


def replacement(message: dict[str, Any], plan: Plan, more_bytes: int) -> tuple[Plan | None, str]:
    """Returns a plan in the place of one of the same graph that needs `more_bytes` more than it
    says, and "", or None and why there is none: the daemon replaces a plan a few times at most."""
    budget = str(plan.budget_bytes)
    other, why, _ = asked(message, budget, replaces=plan.plan_number, more_bytes=more_bytes)
    return other, why


def asked(
    message: dict[str, Any],
    budget: str,
    capabilities: str = "tape:seeded_ok=1",
    *,
    replaces: int = 0,
    more_bytes: int = 0,
) -> tuple[Plan | None, str, bool]:
    """Returns a plan, or None; why there is none; and whether the planner found that nothing
    fits. `replaces`: the number of a plan that needs `more_bytes` more than it says, in whose place
    the plan is to be."""
    before = Agent.live()
    collector, agent = Agent.connect({"name": "estimate"})
    try:
        if collector.socket is None:
            return None, collector.why, False
        text = json.dumps(message).encode()
        graph = agent.submit_graph(
            text,
            budget,
            capabilities,
            message["static_bytes"],
            replaces=replaces,
            more_bytes=more_bytes,
        )
        if graph is None:
            return None, agent.why, False
        reply = agent.wait_plan(graph, timeout_s=WAIT_S)
    finally:
        # The session of a job that trains in this process goes on.
        if before is None:
            agent.stop()
    if reply.plan is not None and reply.plan.feasible:
        return reply.plan, "", False
    why = reply.why or (reply.plan.sentence if reply.plan else "no plan arrived in time")
    return None, why, reply.kind == "refused" or reply.plan is not None
