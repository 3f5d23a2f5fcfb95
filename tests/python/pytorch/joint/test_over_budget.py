# SPDX-License-Identifier: Apache-2.0
"""One plan for the graphs of a compiled job, after a measured step and after one that peaks above
its budget, without compiling anything."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from reprise.base.budget import Budget
from reprise.plan import Plan
from reprise.torch.joint.joint_graph import Peaks
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.over_budget import OverBudget

MIB = 1 << 20
BUDGET = 8 * MIB


def op(number: int, phase: str, reads: list[int], writes: list[int]) -> dict[str, Any]:
    kinds = {"phase": f"PHASE_{phase}", "kind": "OP_KIND_PURE", "module": ""}
    numbers = {"id": number, "time_ns": 10, "workspace_bytes": 0}
    return {"name": "mul", **kinds, **numbers, "reads": reads, "writes": writes}


# Three ops of the forward make 1 MiB each, which the backward reads from the last one to the first.
MESSAGE: dict[str, Any] = {
    "static_bytes": MIB,
    "required": [],
    "storages": [{"id": i, "bytes": MIB, "release_op": i + 1, "pinned": False} for i in range(3)],
    "ops": [
        op(0, "FORWARD", [], []),
        op(1, "FORWARD", [], [0]),
        op(2, "FORWARD", [0], [1]),
        op(3, "FORWARD", [1], [2]),
        op(4, "BACKWARD", [2], []),
        op(5, "BACKWARD", [1], []),
        op(6, "BACKWARD", [0], []),
    ],
}
ALL_KEPT, FIRST_AGAIN = [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 1, 6, 7]


def plan(number: int, peak: int, schedule: list[int], budget: int = BUDGET) -> Plan:
    fields = {
        "plan_id": f"{number:016x}",
        "graph_id": f"{1:016x}",
        "budget": str(budget),
        "budget_bytes": budget,
        "feasible": True,
        "peak_bytes": peak,
        "time_ns": 30,
        "base_peak_bytes": peak,
        "base_time_ns": 20,
        "schedule": schedule,
        "decisions": [1, 1, 1, 1],
        "recomputed_ops": sorted({o for o in schedule if schedule.count(o) > 1}),
    }
    return Plan.from_json(json.dumps(fields).encode())


class Server:
    """Answers a request for a plan, and requests for one in the place of another one."""

    def __init__(self, *answers: tuple[Plan | None, str]) -> None:
        self.answers, self.told = list(answers), list[tuple[int, int]]()
        self.asked: list[dict[str, Any]] = []

    def ask(self, message: dict[str, Any], budget: str) -> tuple[Plan | None, str]:
        self.asked.append(message)
        return self.answers.pop(0)

    def replace(
        self, message: dict[str, Any], old: Plan, more_bytes: int
    ) -> tuple[Plan | None, str]:
        self.told.append((old.plan_number, more_bytes))
        return self.answers.pop(0)


def planned(server: Server) -> tuple[OverBudget, Any]:
    """Returns what has planned a step that begins with 4 MiB alive, takes 1 MiB that no graph
    shows, and whose optimizer peaks at 6 MiB, and what is to be done."""
    joint = JointPass(Budget(BUDGET), server.ask)
    joint._replace = server.replace
    joint.graphs.append(MESSAGE)
    over = OverBudget(joint)
    memory: Any = SimpleNamespace(
        began_live=4 * MIB,
        held_bytes=0,
        peaks=Peaks(backward=8 * MIB),
        optimizer_peak=6 * MIB,
        outside_bytes=0,
        outputs_die=False,
        backwards=[],
    )
    return over, over.plan_whole([0], [0], memory, "AdamW(fused=None)")


def test_all_that_a_measured_step_has_alive_is_in_the_graph_that_is_planned(home: Any) -> None:
    server = Server((plan(1, 8 * MIB, ALL_KEPT), ""))

    over, todo = planned(server)

    (message,) = server.asked
    assert message["measured_peak_bytes"] == 8 * MIB
    assert message["static_bytes"] == 4 * MIB
    assert message["storages"][-1]["bytes"] == MIB
    assert message["required"] == [3]
    last = message["ops"][-1]
    assert (last["phase"], last["module"]) == ("PHASE_OPTIMIZER", "AdamW(fused=None)")
    assert last["workspace_bytes"] == MIB
    assert over.predicted_peak_bytes == todo.plan.peak_bytes == 8 * MIB


def test_the_server_is_told_what_the_plan_needs_more_and_its_answer_is_compiled(home: Any) -> None:
    server = Server((plan(1, BUDGET, ALL_KEPT), ""), (plan(2, BUDGET - 10_000, FIRST_AGAIN), ""))
    over, _ = planned(server)

    todo = over.above(BUDGET + 10_000)

    # 10,000 more than was predicted and 2 %, and 2 % more.
    assert server.told == [(1, 10_404)]
    assert todo.plan.plan_number == 2
    assert todo.plan.peak_bytes == over.predicted_peak_bytes == 7 * MIB + 10_200


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((None, "plan 1 was made after 4 others: no further one is made."), "no further one"),
        # The plan that needs least, where nothing fits.
        (
            (plan(2, BUDGET + 5, FIRST_AGAIN, BUDGET + 5), ""),
            "no plan leaves 10.2 KiB more of 8.0 MiB",
        ),
    ],
)
def test_where_the_server_has_no_plan_training_continues_without_one(
    answer: tuple[Plan | None, str], why: str, home: Any
) -> None:
    over, _ = planned(Server((plan(1, BUDGET, ALL_KEPT), ""), answer))

    todo = over.above(BUDGET + 10_000)

    assert todo.plan is None
    assert todo.stop.startswith("a compiled step peaks at 8.0 MiB, above 8.0 MiB: ")
    assert why in todo.stop
    assert todo.stop.endswith("; training continues without a plan")
