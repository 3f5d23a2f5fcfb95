# SPDX-License-Identifier: Apache-2.0
"""What follows when a compiled step peaks above its budget, without compiling anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reprise.plan import Plan
from reprise.torch.joint.executor import JointPlan
from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.over_budget import Next, OverBudget

MIB = 1 << 20
BUDGET = 4 * MIB


def op(number: int, phase: str, reads: list[int], writes: list[int]) -> dict[str, Any]:
    kinds = {"phase": f"PHASE_{phase}", "kind": "OP_KIND_PURE"}
    numbers = {"id": number, "time_ns": 10, "workspace_bytes": 0}
    return {"name": "mul", **kinds, **numbers, "reads": reads, "writes": writes}


# An op of the forward makes 1 MiB, which the backward reads.
MESSAGE: dict[str, Any] = {
    "static_bytes": MIB,
    "required": [],
    "storages": [{"id": 0, "bytes": MIB, "release_op": 1}],
    "ops": [op(0, "FORWARD", [], [0]), op(1, "BACKWARD", [0], [])],
}


def plan(number: int, peak: int, budget: int = BUDGET) -> Plan:
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
        "schedule": [0, 1],
        "decisions": [1],
    }
    return Plan.from_json(json.dumps(fields).encode())


class Server:
    """Answers requests for a plan in the place of another one."""

    def __init__(self, *answers: tuple[Plan | None, str]) -> None:
        self.answers, self.told = list(answers), list[tuple[int, int]]()

    def __call__(
        self, message: dict[str, Any], old: Plan, more_bytes: int
    ) -> tuple[Plan | None, str]:
        self.told.append((old.plan_number, more_bytes))
        return self.answers.pop(0)


@pytest.fixture
def joint(home: Any) -> JointPass:
    made = JointPass(str(BUDGET), only_when_told=True)
    made._budget_bytes = BUDGET
    made.graphs.append(MESSAGE)
    made.executor.handles.append(JointPlan(made.executor, MESSAGE, plan(1, BUDGET - 1000)))
    return made


def test_the_server_is_told_what_the_plan_needs_more_and_its_answer_is_compared(
    joint: JointPass,
) -> None:
    joint._replace = server = Server((plan(2, BUDGET - 10), ""))

    todo = OverBudget(joint).above(BUDGET + 9_000)

    assert todo == Next(compile_again=True, unchecked=True)
    assert server.told == [(1, 10_200)]  # 10,000 more than the plan says, and 2 %
    assert [known.plan_number for known in joint.plans] == [2]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((None, "plan 1 was made after 4 others: no further one is made."), "no further one"),
        # The plan that needs least, where nothing fits.
        ((plan(2, BUDGET + 5, BUDGET + 5), ""), "no plan leaves 10.0 KiB more of 4.0 MiB"),
    ],
)
def test_where_the_server_has_no_plan_training_continues_without_one(
    answer: tuple[Plan | None, str], why: str, joint: JointPass
) -> None:
    joint._replace = Server(answer)

    todo = OverBudget(joint).above(BUDGET + 9_000)

    assert not todo.compile_again
    assert todo.stop.startswith("compiled steps peak at 4.0 MiB, above the budget of 4.0 MiB: ")
    assert why in todo.stop
    assert todo.stop.endswith("; training continues without a plan")
