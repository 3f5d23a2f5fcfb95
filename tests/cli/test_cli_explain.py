# SPDX-License-Identifier: Apache-2.0
"""reprise explain: why a plan is as it is, or why there is none."""

from __future__ import annotations

import re
from pathlib import Path

from cli_program import Reprise


def test_says_what_is_recomputed_and_what_the_other_decision_would_cost(
    reprise: Reprise, graph_file: Path
) -> None:
    # small_graph: x (storage 0, 50 bytes) is made again by f0 for 5 ns.
    explained = reprise("explain", "small.graph.json", "--budget", "1324", "--json")

    assert explained.code == 0, explained
    storages = {s["storage"]: s for s in explained.json()["storages"]}
    assert storages[0]["decision"] == "DECISION_RECOMPUTE"
    assert storages[0]["times_recomputed"] == 1
    assert [life["born"] for life in storages[0]["lives"]] == [0, 5]
    assert storages[0]["what_if"] == {
        "decision": "DECISION_SAVE",
        "added_ns": -5,
        "added_bytes": 50,
    }
    assert storages[3]["why"] == "not_repeatable"
    assert storages[1]["decision"] == "DECISION_SAVE"


def test_the_plan_file_is_explained_as_the_plan_was(reprise: Reprise, graph_file: Path) -> None:
    direct = reprise("explain", "small.graph.json", "--budget", "1324")
    assert reprise("plan", "small.graph.json", "--budget", "1324").code == 0

    from_file = reprise("explain", "small.plan.json")

    assert direct.code == from_file.code == 0
    assert "WHAT THE PLAN DOES" in from_file.out
    assert from_file.out == direct.out


def test_a_run_is_explained_for_a_budget_and_by_its_plan(
    reprise: Reprise, server: object, graph_file: Path
) -> None:
    file = reprise("explain", "small.graph.json", "--budget", "1324")
    assert reprise("import", "small.graph.json").code == 0

    assert "has no plan to explain" in reprise.fails(1, "explain", "latest")
    for_a_budget = reprise("explain", "latest", "--budget", "1324", "--executor", "free")

    assert for_a_budget.code == 0, for_a_budget
    assert for_a_budget.out == file.out
    assert "there is no run" in reprise.fails(1, "explain", "nothing")


def test_plan_explains_in_the_same_words(reprise: Reprise, graph_file: Path) -> None:
    explained = reprise("explain", "small.graph.json", "--budget", "1324")
    planned = reprise("plan", "small.graph.json", "--budget", "1324", "--explain")

    _, _, reasons = explained.out.partition("\n")
    assert reasons in planned.out


def test_an_impossible_budget_shows_what_is_in_the_way(reprise: Reprise, graph_file: Path) -> None:
    # b2 reads 100 + 100 + 8, writes 100 and has 16 of workspace, above 1000 static.
    explained = reprise("explain", "small.graph.json", "--budget", "1300")

    assert explained.code == 3
    assert "IN THE WAY: op 4 b2" in explained.out
    assert "smallest budget that is not ruled out: 1.3 KiB (1324 bytes)" in explained.out
    assert "advice: " in explained.out
    working_set = reprise("explain", "small.graph.json", "-b", "1300", "--json").json()[
        "working_set"
    ]
    assert working_set["bytes"] == 1324
    assert working_set["workspace_bytes"] == 16


def test_equal_blocks_are_one_line(reprise: Reprise) -> None:
    assert reprise.generate("transformer", "--ops", "300").code == 0

    out = reprise("explain", "transformer-300.graph.json", "--budget", "0.9x", "--top", "999").out

    assert re.search("one more [GMK]iB saves [0-9.]+ [a-z]+ at this budget", out)
    assert "layers.0-5" in out


def test_mistakes_are_named(reprise: Reprise, graph_file: Path) -> None:
    assert "add --budget" in reprise.fails(2, "explain", "small.graph.json")
    assert "8GiB" in reprise.fails(2, "explain", "small.graph.json", "--budget", "8G")
    assert "--top" in reprise.fails(2, "explain", "small.graph.json", "-b", "1324", "--top", "0")
    assert "no such file" in reprise.fails(1, "explain", "none.json", "-b", "1324")
    assert reprise("plan", "small.graph.json", "--budget", "1324").code == 0
    graph_file.unlink()
    assert "put it beside the plan" in reprise.fails(1, "explain", "small.plan.json")
