# SPDX-License-Identifier: Apache-2.0
"""The agent through which a program without a framework's adapter reports: one per process, in one
run at a time."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from reprise.base.errors import RepriseError

if TYPE_CHECKING:
    from reprise.agent.agent import Agent

__all__ = ["agent_of", "close", "current", "reports"]

_agent: Agent | None = None


def current() -> Agent | None:
    """Returns the agent that reports now, if there is one."""
    return _agent


def reports(agent: Agent) -> bool:
    """Returns whether the reports of step graphs go through `agent`."""
    return agent is _agent


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
