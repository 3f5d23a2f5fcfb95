# SPDX-License-Identifier: Apache-2.0
"""What a job measured, beside what was predicted: its run's page and verdict.

    answer = plan(graph, "0.5x")
    report_step(None, step=0, peak_bytes=..., step_ns=...)        # a step without a plan
    report_step(answer, step=1, peak_bytes=..., step_ns=...)
    report_check(answer, step=1, checked=12, differing=0)         # gradients compared bit for bit

Reports go through the agent's C ABI (libreprise_agent.so) to the daemon beside this process, and
survive the process. They belong to the run that `plan` made for the graph; the reports of another
graph end that run's session and begin one in the other run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reprise.errors import RepriseError
from reprise.plan.asking import run_of
from reprise.plan.received import Plan

if TYPE_CHECKING:
    from reprise.agent import Agent

__all__ = ["report_check", "report_step"]

_agent: Agent | None = None
# The newest plan that was reported under, to say once that it is applied.
_applied = 0


def report_step(
    plan: Plan | None,
    *,
    step: int,
    peak_bytes: int,
    step_ns: int,
    recomputed: int = 0,
    plan_broken: bool = False,
) -> bool:
    """Reports a finished step: under `plan`, or plain where it is None.

    `peak_bytes`: the most that was alive during the step, static memory included. `recomputed`: ops
    that ran again. `plan_broken`: the step was not as planned and kept everything. Returns False
    where nobody takes the report: no daemon, or no agent library."""
    from reprise import abi

    agent = _connected(plan)
    if agent.status == "inert":
        return False
    _say_applied(agent, plan)
    agent.step(step)
    agent.step_done(
        step,
        step_ns=step_ns,
        peak_bytes=peak_bytes,
        plan_id=0 if plan is None else plan.plan_number,
        flags=(abi.STEP_PLANNED if plan else 0) | (abi.STEP_KEPT_ALL if plan_broken else 0),
        recomputed=recomputed,
        mismatches=int(plan_broken),
    )
    agent.flush()
    return True


def report_check(
    plan: Plan, *, step: int, checked: int, differing: int, first_differing: str = ""
) -> bool:
    """Reports that `checked` gradients of a step under `plan` were compared, bit for bit, with
    those of the same step without it, and `differing` of them differ. Returns as `report_step`."""
    from reprise import abi

    agent = _connected(plan)
    if agent.status == "inert":
        return False
    agent.verify(
        step,
        plan_id=plan.plan_number,
        checked=checked,
        differing=differing,
        flags=abi.VERIFY_FAILED if differing else abi.VERIFY_BITWISE,
        first_name=agent.intern(first_differing) if first_differing else 0,
    )
    agent.flush()
    return True


def _connected(plan: Plan | None) -> Agent:
    """The agent, in the run of the plan."""
    global _agent
    from reprise.agent import Agent

    run = run_of(plan)
    live = Agent.live()
    if live is not None and live is not _agent:
        raise RepriseError(
            f"this process has a job that reports to run {live.run_id}; report the steps of a step "
            "graph from another process"
        )
    # A process has one session at a time.
    if _agent is not None and plan is not None and run not in (None, _agent.run_id):
        _agent.stop()
        _agent = None
    if _agent is None:
        _, _agent = Agent.connect({"name": "step graph"}, run)
    return _agent


def _say_applied(agent: Agent, plan: Plan | None) -> None:
    global _applied
    if plan is not None and plan.plan_number != _applied:
        agent.plan_applied(plan.plan_number, 0, plan.peak_bytes)
        _applied = plan.plan_number
