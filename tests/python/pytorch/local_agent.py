# SPDX-License-Identifier: Apache-2.0
"""An agent whose planner is `referee.random_plan`, so that sessions run in one process without a
daemon; where a job may use host memory, some storages are there at random. It has the calls of
`reprise.agent.agent.Agent`, and keeps what was reported."""

from __future__ import annotations

import json
from typing import Any

import parking
import referee

from reprise.agent import abi
from reprise.agent.agent import PlanReply
from reprise.plan import Plan


class LocalAgent:
    def __init__(
        self, share: float = 1.0, again: float = 0.3, seed: int = 0, late: bool = False
    ) -> None:
        self.share, self.again, self.seed, self.late = share, again, seed, late
        self.status, self.why, self.run_id = "ok", "", "local"
        self.graphs: list[dict[str, Any]] = []
        self.budgets: list[str] = []
        self.reserves: list[int] = []  # by request: bytes that its plan leaves free
        self.steps: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.states: list[tuple[int, int, str]] = []
        self.refuse = ""
        self.refused: dict[int, str] = {}  # why, by request; a budget that is sent ends it
        self.offer = ""  # a budget that is sent to the job
        self.break_plan = False
        self.plan_peak = 0
        self.capabilities = ""
        self.moved: set[str] = set()  # names of what plans send to host memory
        self.ops: list[int] = []
        self.op_names: list[str] = []  # of these
        self.texts: list[str] = []
        self.ended: list[int] = []
        self.ooms = 0

        self.moments: list[dict[str, Any]] = []

    def step(self, step: int) -> None: ...
    def step_under(self, graph_id: int, plan_id: int) -> None: ...
    def phase(self, phase: int) -> None: ...
    def at(self, op_plus_one: int) -> None: ...

    def address(self, name: str) -> int:
        return 0

    def stop(self) -> None: ...
    def flush(self, timeout_s: float = 1.0) -> None: ...

    def window_kinds(self) -> int:
        return 0

    def op_begin(self, op: int, name: int) -> None:
        self.ops.append(op)
        self.op_names.append(self.texts[name])

    def op_end(self, op: int) -> None:
        self.ended.append(op)

    def oom(self, device: int, asked: int = 0, total: int = 0, free_bytes: int = 0) -> None:
        self.ooms += 1

    def snapshot(self, moment: bytes) -> None:
        self.moments.append(json.loads(moment))

    def intern(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def submit_graph(
        self,
        text: bytes,
        budget: str,
        capabilities: str,
        static_bytes: int,
        reserve_bytes: int = 0,
        replaces: int = 0,
        more_bytes: int = 0,
        **device: int,
    ) -> int:
        """Returns the id of the request, which is the number of its plan too."""
        self.device = device
        self.reserves.append(
            self.reserves[replaces - 1] + more_bytes if replaces else reserve_bytes
        )
        self.graphs.append(json.loads(text))
        self.budgets.append(budget)
        self.capabilities = capabilities
        return len(self.graphs)

    def poll_plan(self, graph_id: int, have: int = 0) -> PlanReply:
        if self.refuse:
            self.refused[graph_id] = self.refuse
        if graph_id in self.refused and (self.refuse or not self.offer):
            return PlanReply("refused", why=self.refused[graph_id], smallest_budget=7)
        if have == graph_id and not self.offer:
            return PlanReply("pending")
        if not self.budgets[graph_id - 1] and not self.offer:
            return PlanReply("refused", why="no budget was given")
        return PlanReply("plan", plan=self.make(self.graphs[graph_id - 1], graph_id))

    def wait_plan(self, graph_id: int, have: int = 0, timeout_s: float = 60.0) -> PlanReply:
        return self.poll_plan(graph_id, have)

    def _random_plan(self, graph: dict[str, Any]) -> list[int]:
        """Returns the plan of the first seed that finds one."""
        for seed in range(self.seed, self.seed + 20):
            try:
                return referee.random_plan(graph, seed, self.share, self.again, self.late)
            except referee.Invalid:
                continue
        return referee.base_schedule(graph)

    def make(self, graph: dict[str, Any], number: int) -> Plan:
        schedule = self._random_plan(graph)
        peak, time, _ = referee.evaluate(graph, schedule)
        if "host_bytes" in self.capabilities:
            may = {s["id"] for s in graph["storages"] if not s.get("stays")}
            schedule, moved = parking.parked(graph, schedule, may, self.seed)
            peak = max(parking.bytes_at(graph, schedule))
            self.moved |= {graph["storages"][s]["name"] for s in moved}
        peak += self.reserves[number - 1]
        base_peak, base_time, _ = referee.evaluate(graph, referee.base_schedule(graph))
        self.plan_peak = peak
        if self.break_plan:
            schedule = schedule[:-3]
        return Plan.from_json(
            json.dumps(
                {
                    "plan_id": f"{number:016x}",
                    "graph_id": f"{number:016x}",
                    "budget": self.offer or "local",
                    # The state of the generator is read where a check begins: 5 kB.
                    "budget_bytes": peak + 8192,
                    "feasible": True,
                    "peak_bytes": peak,
                    "time_ns": time,
                    "base_peak_bytes": base_peak,
                    "base_time_ns": base_time,
                    "schedule": schedule,
                    "decisions": [1] * len(graph["storages"]),
                    "sentence": "It fits.",
                }
            )
        )

    def plan_applied(self, plan_id: int, own_ns: int, peak_bytes: int) -> None:
        self.states.append((plan_id, abi.PLAN_APPLIED, ""))

    def plan_state(self, plan_id: int, state: int, why: str = "") -> None:
        if state == abi.PLAN_OTHER_LOAD:
            return  # says something of the machine, not of the job
        self.states.append((plan_id, state, why))

    def step_done(self, step: int, **report: Any) -> None:
        self.steps.append({"step": step, **report})

    def verify(self, step: int, **report: Any) -> None:
        self.checks.append({"step": step, **report})
