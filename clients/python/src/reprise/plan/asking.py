# SPDX-License-Identifier: Apache-2.0
"""Questions to the planner: a plan for a budget, and the whole trade-off curve.

Each graph is sent once per process and server and becomes a run there, so that its plans have a
page; `report_step` puts what was measured beside what was predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from reprise.agent.received import Infeasible, InfeasibleBudget, Plan
from reprise.base.budget import Budget
from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.base.proto_json import Fields
from reprise.plan.capabilities import Capabilities
from reprise.plan.step_graph import MOST_SUM, StepGraph

if TYPE_CHECKING:
    from reprise.plan.server import Sent, Server


STRATEGIES = ("auto", "memory", "speed", "collection", "per_block", "save_all")
MOST_TIME_S = 600.0
MOST_POINTS = 501


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One budget of the curve and what it costs. Without a plan, `infeasible` says why."""

    budget_bytes: int
    feasible: bool
    peak_bytes: int
    time_ns: int
    # Extra time as a fraction of a step without a plan, and the lower bound of it.
    overhead: float
    bound: float
    infeasible: Infeasible | None
    solver: str


# By server and content.
_sent: dict[tuple[str, str], Sent] = {}


def plan(
    graph: StepGraph,
    budget: str | int,
    executor: str | Capabilities = "free",
    *,
    strategy: str = "auto",
    time_limit_s: float | None = None,
    seed: int = 0,
    threads: int = 0,
    reserve_bytes: int = 0,
    device_bytes: int = 0,
    device_free_bytes: int = 0,
    server: Server | None = None,
) -> Plan:
    """Returns a plan for `budget` that `executor` can run. `budget`: "22GiB", a number of bytes,
    "0.5x"; "90%" and "fit" with `device_bytes` and `device_free_bytes`.

    Without `time_limit_s` the effort is fixed and the plan the same every time. `reserve_bytes` of
    the budget are held back for what the graph does not show. Raises `RepriseError` naming the
    field of the graph or of the question that is wrong, `InfeasibleBudget` where no plan was found
    (its `plan` says by whose word, and which op needs more), `ServerUnavailable`."""
    text = Budget(budget)
    _check_graph(graph)
    if strategy not in STRATEGIES:
        raise RepriseError(f"strategy: must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    request = {
        **_limits(time_limit_s, seed, threads),
        "budget": text,
        "capabilities": Capabilities.of(executor).to_message(),
        "strategy": f"STRATEGY_{strategy.upper()}",
        "reserveBytes": counted(reserve_bytes, "reserve_bytes", MOST_SUM),
        "deviceBytes": counted(device_bytes, "device_bytes", MOST_SUM),
        "deviceFreeBytes": counted(device_free_bytes, "device_free_bytes", MOST_SUM),
    }
    plainly = strategy == "auto" and not (time_limit_s or seed or threads or device_bytes)
    if server is None and plainly:
        from reprise.plan import session

        if session.is_within_run():
            able = Capabilities.of(executor)
            return session.plan_within_run(graph, text, able, reserve_bytes)
    found: Plan | None = None
    for event in _ask(graph, "Planner/Plan", request, server):
        if "plan" in event:
            found = Plan.from_message(event["plan"])
    if found is None:
        raise RepriseError("the server ended the search without a plan and without a reason")
    if not found.feasible:
        smallest = found.infeasible.smallest_budget_bytes if found.infeasible else None
        raise InfeasibleBudget(found.sentence, smallest, found)
    return found


def sweep(
    graph: StepGraph,
    executor: str | Capabilities = "free",
    *,
    points: int = 21,
    time_limit_s: float | None = None,
    seed: int = 0,
    threads: int = 0,
    server: Server | None = None,
) -> list[TradeoffPoint]:
    """Returns the curve of overhead over budget, the largest budget first. Raises as `plan`, but an
    impossible budget is a point."""
    _check_graph(graph)
    request = {
        **_limits(time_limit_s, seed, threads),
        "capabilities": Capabilities.of(executor).to_message(),
        "points": counted(points, "points", MOST_POINTS),
    }
    # A point that a later search improves comes again.
    newest: dict[int, TradeoffPoint] = {}
    for message in _ask(graph, "Planner/Sweep", request, server):
        f = Fields(message, "point")
        rest = f.plain(TradeoffPoint, but=("infeasible",))
        point = TradeoffPoint(infeasible=f.made("infeasible", Infeasible), **rest)
        newest[point.budget_bytes] = point
    return [newest[budget] for budget in sorted(newest, reverse=True)]


def run_of(found: Plan | None) -> str | None:
    """Returns the id of the run that this process made for the graph of a plan; without a plan, for
    its newest graph. None if it made none."""
    fitting = (s for s in reversed(_sent.values()) if not found or s.graph_id == found.graph_id)
    return next((sent.run_id for sent in fitting), None)


def _ask(
    graph: StepGraph, method: str, request: dict[str, Any], server: Server | None
) -> list[dict[str, Any]]:
    """Returns the answers. Asks once more if the daemon has ended since the last question, as a
    private one may."""
    from reprise.plan.finding import find_server

    try:
        return _asked(graph, method, request, server or find_server())
    except ServerUnavailable:
        if server is not None:
            raise
        return _asked(graph, method, request, find_server())


def _asked(
    graph: StepGraph, method: str, request: dict[str, Any], server: Server
) -> list[dict[str, Any]]:
    from hashlib import sha256

    content = sha256(graph.to_json().encode()).hexdigest()
    key = (server.address, content)
    if key not in _sent:
        # A daemon that was started again has another port, and the run of before.
        earlier = (sent for (_, known), sent in reversed(_sent.items()) if known == content)
        _sent[key] = next((sent for sent in earlier if server.has(sent)), None) or server.send(
            graph
        )
    to = {"graphId": _sent[key].graph_id}
    if method == "Planner/Plan":
        to["runId"] = _sent[key].run_id
    return list(server.stream(method, {**request, **to}))


def _limits(time_limit_s: float | None, seed: int, threads: int) -> dict[str, Any]:
    if time_limit_s is not None:
        check_time_limit(time_limit_s)
    milliseconds = 0 if time_limit_s is None else max(1, round(time_limit_s * 1000))
    return {
        "timeLimitMs": milliseconds,
        "seed": counted(seed, "seed", (1 << 64) - 1),
        "threads": counted(threads, "threads", (1 << 32) - 1),
    }


def check_time_limit(time_limit_s: object) -> None:
    """Raises RepriseError if it is no number of seconds that a search may take."""
    is_number = isinstance(time_limit_s, (int, float)) and not isinstance(time_limit_s, bool)
    if not (is_number and 0 < time_limit_s <= MOST_TIME_S):  # type: ignore[operator]
        raise RepriseError(
            f"time_limit_s: must be above 0 and at most {MOST_TIME_S:.0f}, got {time_limit_s!r}"
        )


def counted(value: object, name: str, most: int) -> int:
    """Returns a number that a question takes. Raises RepriseError if it is something else."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise RepriseError(f"{name}: must be an integer, got {value!r}"[:120])
    if not 0 <= index(value) <= most:
        raise RepriseError(f"{name}: must be from 0 to {most}, got {value!r}"[:120])
    return index(value)


def _check_graph(graph: object) -> None:
    if not isinstance(graph, StepGraph):
        raise RepriseError(
            f"graph: must be a reprise.plan.StepGraph, got {type(graph).__name__}; "
            "StepGraph.from_json reads one from a file"
        )
