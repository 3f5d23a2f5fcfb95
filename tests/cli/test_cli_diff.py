# SPDX-License-Identifier: Apache-2.0
"""reprise diff: what differs at the peaks of two plans, steps or runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_program import Reprise


@pytest.fixture
def plans(reprise: Reprise, graph_file: Path) -> tuple[str, str]:
    """The smallest plan of the small graph, which makes x again, and one that saves all."""
    assert reprise("plan", "small.graph.json", "--budget", "1324", "--out", "a.plan.json").code == 0
    assert reprise("plan", "small.graph.json", "--budget", "2000", "--out", "b.plan.json").code == 0
    return "a.plan.json", "b.plan.json"


def rows(comparison: dict[str, Any], key: str) -> list[tuple[int, int]]:
    return [(part.get("a_bytes", 0), part.get("b_bytes", 0)) for part in comparison[key]]


def test_every_byte_of_both_peaks_is_in_every_table(
    reprise: Reprise, plans: tuple[str, str]
) -> None:
    found = reprise("diff", *plans, "--json").json()

    assert not found.get("equal", False)
    assert found["a"]["peak_bytes"] == 1324
    for table in ("categories", "modules", "sources"):
        a, b = zip(*rows(found, table), strict=True)
        assert sum(a) == found["a"]["peak_bytes"], table
        assert sum(b) == found["b"]["peak_bytes"], table
        differences = [abs(x - y) for x, y in rows(found, table)]
        assert differences == sorted(differences, reverse=True), table


def test_what_runs_again_in_one_plan_alone_is_named(
    reprise: Reprise, plans: tuple[str, str]
) -> None:
    found = reprise("diff", *plans, "--json").json()
    text = reprise("diff", *plans).out

    again = [op for op in found["recomputed"] if op.get("a_again", 0) and not op.get("b_again", 0)]
    assert [op["name"] for op in again] == ["f0"]
    assert text.splitlines()[0] == found["sentence"]
    assert "RUN AGAIN" in text
    assert "in B and not in A: 0" in found["sentence"]


def test_a_plan_is_equal_to_itself_and_only_differences_are_shown(
    reprise: Reprise, plans: tuple[str, str]
) -> None:
    same = reprise("diff", plans[0], plans[0])

    assert same.code == 0
    assert "A and B are equal: both peak at 1.3 KiB." in same.out
    assert "AT THE PEAK" not in same.out
    assert "AT THE PEAK" in reprise("diff", plans[0], plans[0], "--all").out


def test_a_step_graph_is_the_step_without_a_plan(reprise: Reprise, plans: tuple[str, str]) -> None:
    found = reprise("diff", plans[0], "small.graph.json", "--json").json()

    assert found["b"]["peak_of"] == "predicted without a plan"
    assert found["a"]["base_peak_bytes"] == found["b"]["peak_bytes"]


def test_a_file_is_not_compared_with_what_a_server_has_stored(
    reprise: Reprise, plans: tuple[str, str]
) -> None:
    assert "import it first" in reprise.fails(2, "diff", plans[0], "latest")


def test_an_exit_code_says_whether_they_differ(reprise: Reprise, plans: tuple[str, str]) -> None:
    assert reprise("diff", plans[0], plans[0], "--exit-code").code == 0
    assert reprise("diff", *plans, "--exit-code").code == 1
    assert reprise("diff", *plans).code == 0


def test_what_cannot_be_compared_is_named(reprise: Reprise, plans: tuple[str, str]) -> None:
    assert "nofile.json: no such file" in reprise.fails(1, "diff", "nofile.json", plans[0])
