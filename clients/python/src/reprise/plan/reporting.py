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

from reprise.agent.received import Plan
from reprise.base.errors import RepriseError
from reprise.plan.asking import counted, run_of
from reprise.plan.step_graph import MOST_SUM

if TYPE_CHECKING:
    from reprise.agent.agent import Agent


# The newest plan that was reported under, to say once that it is applied.
_applied = 0
# Whether the daemon has not read the newest report that it was waited for.
_unread = False
# What the records of the agent hold, where it is less than bytes may be.
_MOST = {"recomputed": (1 << 32) - 1, "checked": (1 << 32) - 1, "differing": (1 << 32) - 1}


def report_step(
    plan: Plan | None,
    *,
    step: int,
    peak_bytes: int,
    step_ns: int,
    recomputed: int = 0,
    plan_broken: bool = False,
    predicted_peak_bytes: int = 0,
    wait: bool = True,
) -> bool:
    """Reports a finished step: under `plan`, or plain where it is None.

    `peak_bytes`: the most that was alive during the step, static memory included; 0 if it was not
    measured. `recomputed`: ops that ran again. `plan_broken`: the step was not as planned and kept
    everything. `predicted_peak_bytes`: the peak as the executor runs the plan, if it is another one
    than the plan's; the first report under a plan tells it. With `wait=False` it does not wait
    until the daemon has read the report.

    Returns False where nobody takes the report: no daemon, or no agent library. If the daemon ends
    later, reports are kept for the next one. Raises RepriseError for figures that cannot be."""
    global _applied
    from reprise.agent import abi

    figures = {
        "step": step,
        "peak_bytes": peak_bytes,
        "step_ns": step_ns,
        "recomputed": recomputed,
        "predicted_peak_bytes": predicted_peak_bytes,
    }
    step, peak_bytes, step_ns, recomputed, predicted = _checked(plan, figures)
    agent = _connected(plan)
    if agent.status == "inert":
        return False
    if plan is not None and plan.plan_number != _applied:
        agent.plan_applied(plan.plan_number, 0, predicted or plan.peak_bytes)
        _applied = plan.plan_number
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
    if wait:
        _wait(agent)
    return True


def _checked(plan: Plan | None, figures: dict[str, int]) -> list[int]:
    """Returns the figures of a report. Raises RepriseError that names what cannot be one."""
    if plan is not None and not isinstance(plan, Plan):
        raise RepriseError(f"plan: must be what plan() returned, or None, got {plan!r}"[:120])
    most = {name: _MOST.get(name, MOST_SUM) for name in figures}
    return [counted(value, name, most[name]) for name, value in figures.items()]


def _wait(agent: Agent) -> None:
    """Waits until the daemon has read the report: about a second if it has ended, once. Later
    reports wait again when a daemon answers."""
    global _unread
    if _unread and not agent.is_answered:
        return
    _unread = not agent.flush()


def report_check(
    plan: Plan, *, step: int, checked: int, differing: int, first_differing: str = ""
) -> bool:
    """Reports that `checked` gradients of a step under `plan` were compared, bit for bit, with
    those of the same step without it, and `differing` of them differ. Returns as `report_step`."""
    from reprise.agent import abi

    figures = {"step": step, "checked": checked, "differing": differing}
    step, checked, differing = _checked(plan, figures)
    if differing > checked:
        raise RepriseError(f"differing: must be at most checked, {checked}, got {differing}")
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
    _wait(agent)
    return True


def report_unchecked(plan: Plan, why: str) -> None:
    """Reports why no step under `plan` is compared with one without it; the verdict says it."""
    from reprise.agent import abi

    _connected(plan).plan_state(plan.plan_number, abi.PLAN_UNCHECKED, why)


def _connected(plan: Plan | None) -> Agent:
    """Returns the agent, in the run of the plan."""
    from reprise.plan import session

    return session.agent_of(None if plan is None and session.current() else run_of(plan))
