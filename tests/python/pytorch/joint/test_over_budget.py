# SPDX-License-Identifier: Apache-2.0
"""What follows when a compiled step peaks above its budget, without compiling anything."""

from __future__ import annotations

from reprise.torch.joint.joint_pass import JointPass
from reprise.torch.joint.over_budget import TRIES, Next, OverBudget

BUDGET = 4 << 20


def over_budget() -> OverBudget:
    joint = JointPass(str(BUDGET), only_when_told=True)
    joint._budget_bytes = BUDGET
    return OverBudget(joint)


def test_the_first_step_under_a_new_plan_is_compared() -> None:
    assert over_budget().above(BUDGET + 1) == Next(compile_again=True, unchecked=True)


def test_after_some_plans_training_continues_without_one() -> None:
    over = over_budget()
    for _ in range(TRIES):
        assert over.above(BUDGET + 1).compile_again

    todo = over.above(BUDGET + 1)

    assert not todo.compile_again
    assert f"after {TRIES} plans; training continues without one" in todo.stop
