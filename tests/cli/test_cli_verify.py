# SPDX-License-Identifier: Apache-2.0
"""reprise verify: plans and certificates checked by the second program; changed ones rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_program import Reprise


def planned(reprise: Reprise, graph: str, budget: str) -> dict[str, Any]:
    result = reprise("plan", graph, "--budget", budget, "--gap", "0", "--json")
    plan = result.json()
    assert plan["bound_proof"] == "checked", result
    return plan


def verified(reprise: Reprise, graph: str, plan: dict[str, Any]) -> dict[str, Any]:
    (reprise.folder / "changed.plan.json").write_text(json.dumps(plan))
    result = reprise("verify", graph, "changed.plan.json", "--json")
    found = result.json()
    assert result.code == (0 if found.get("holds", False) else 1), result
    return found


def test_a_plan_a_bound_and_a_refusal_are_found_true(reprise: Reprise, graph_file: Path) -> None:
    plan = planned(reprise, "small.graph.json", "1324")
    refusal = planned(reprise, "small.graph.json", "1300")

    found = verified(reprise, "small.graph.json", plan)
    refused = verified(reprise, "small.graph.json", refusal)
    (reprise.folder / "p.plan.json").write_text(json.dumps(plan))
    said = reprise("verify", "small.graph.json", "p.plan.json")

    assert found["holds"]
    assert found["proven_optimal"]
    assert found["bound_proof"] == "BOUND_PROOF_CHECKED"
    assert int(found["peak_bytes"]) == plan["peak_bytes"]
    assert refused["holds"]
    assert refused["bound_proof"] == "BOUND_PROOF_CHECKED"
    assert said.out.startswith("The schedule is valid")
    assert "none is faster" in said.out


def without_a_run(plan: dict[str, Any]) -> None:
    plan["schedule"].remove(["exec", plan["recomputed_ops"][0]])


def with_another_run(plan: dict[str, Any]) -> None:
    at = max(i for i, step in enumerate(plan["schedule"]) if step[0] == "exec")
    plan["schedule"].insert(at, ["exec", plan["recomputed_ops"][0]])


def with_a_smaller_peak(plan: dict[str, Any]) -> None:
    plan["peak_bytes"] -= 1


def with_a_higher_bound(plan: dict[str, Any]) -> None:
    plan["bound"] *= 1.01


def with_a_higher_claim(plan: dict[str, Any]) -> None:
    plan["proof"]["added_ns"] += 1


def without_a_leaf(plan: dict[str, Any]) -> None:
    plan["proof"]["tree"].pop()


def with_a_larger_budget(plan: dict[str, Any]) -> None:
    plan["proof"]["budget_bytes"] -= 1


@pytest.mark.parametrize(
    "change",
    [
        without_a_run, with_another_run, with_a_smaller_peak, with_a_higher_bound,
        with_a_higher_claim, without_a_leaf, with_a_larger_budget,
    ],
)  # fmt: skip
def test_a_changed_plan_is_rejected(
    reprise: Reprise, graph_file: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    plan = planned(reprise, "small.graph.json", "1324")
    change(plan)

    found = verified(reprise, "small.graph.json", plan)

    assert not found.get("holds", False)
    assert found["wrong"]
    assert found["sentence"].startswith("Not true")


def test_a_bound_without_its_certificate_is_the_solvers_word(
    reprise: Reprise, graph_file: Path
) -> None:
    plan = planned(reprise, "small.graph.json", "1324")
    del plan["proof"]
    plan["bound_proof"] = "solver"
    plan["proven_optimal"] = False

    found = verified(reprise, "small.graph.json", plan)

    assert found["holds"]
    assert found["bound_proof"] == "BOUND_PROOF_SOLVER"
    assert "solver's word" in found["sentence"]
