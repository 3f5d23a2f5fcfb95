# SPDX-License-Identifier: Apache-2.0
"""reprise sweep and reprise show on files: no server is needed."""

from __future__ import annotations

import json
from pathlib import Path

from cli_program import Reprise


def test_sweep_is_a_table(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("sweep", "small.graph.json", "--points", "5")

    assert result.code == 0, result
    assert result.out.splitlines()[0].split() == [
        "budget",
        "peak",
        "step",
        "overhead",
        "bound",
        "gap",
    ]


def test_sweep_json_is_a_line_per_budget_largest_first(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("sweep", "small.graph.json", "--points", "5", "--json")

    points = [json.loads(line) for line in result.out.splitlines()]
    budgets = [p["budget_bytes"] for p in points]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] == 1374
    feasible = [p for p in points if p["feasible"]]
    assert feasible[0]["overhead"] == 0
    assert all(p["peak_bytes"] <= p["budget_bytes"] for p in feasible)
    assert all(p["bound"] <= p["overhead"] + 1e-9 for p in feasible)


def test_sweep_refuses_silly_numbers_of_points(reprise: Reprise, graph_file: Path) -> None:
    for points in ("0", "1", "201", "-3", "many"):
        assert "--points" in reprise.fails(2, "sweep", "small.graph.json", f"--points={points}")


def test_show_tells_what_a_graph_holds(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("show", "small.graph.json")

    assert result.code == 0, result
    assert "small: 6 ops (4 forward, 2 backward, 0 optimizer), 6 storages" in result.out
    assert "op 4 b2" in result.out
    shown = reprise("show", "small.graph.json", "--json").json()
    assert shown["base_peak_bytes"] == 1374
    assert shown["smallest_budget_bytes"] == 1324
    assert shown["peak_op"] == 4
    # x, y, z and the loss, and what b2 makes: 50 + 100 + 100 + 8 + 100.
    assert [s["bytes"] for s in shown["at_peak"]] == [100, 100, 100, 50, 8]
    assert shown["categories"] == {"static": 1000, "unknown": 358, "workspace": 16}


def test_show_tells_what_a_plan_does_and_checks_it(reprise: Reprise, graph_file: Path) -> None:
    sentence = reprise("plan", "small.graph.json", "--budget", "1324").out.splitlines()[0]

    result = reprise("show", "small.plan.json")

    assert result.code == 0, result
    assert result.out.splitlines()[0] == sentence
    assert "checked: the schedule is valid" in result.out
    shown = reprise("show", "small.plan.json", "--json").json()
    assert shown["peak_bytes"] == 1324
    assert [s["bytes"] for s in shown["at_peak"]] == [100, 100, 100, 8]
    assert len(shown["memory"]) == sum(what == "exec" for what, _ in shown["schedule"])
    assert max(shown["memory"]) == 1324


def test_show_says_when_the_graph_of_a_plan_is_gone(reprise: Reprise, graph_file: Path) -> None:
    reprise("plan", "small.graph.json", "--budget", "1324")
    graph_file.unlink()

    result = reprise("show", "small.plan.json")

    assert result.code == 0
    assert "was not checked" in result.err
