# SPDX-License-Identifier: Apache-2.0
"""reprise plan --host-budget: recomputation and copies to host memory in one plan of a file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_program import Reprise

GRAPH = "transformer-150.graph.json"
LINK = ("--link", "52GB/s", "--host-budget", "60GiB")
COPIES = ("send", "sent", "fetch", "fetched")


@pytest.fixture
def graph(reprise: Reprise) -> str:
    assert reprise.generate("transformer", "--ops", "150").code == 0
    return GRAPH


def planned(reprise: Reprise, *more: str) -> dict[str, Any]:
    result = reprise("plan", GRAPH, "--budget", "0.7x", "--json", *more)
    assert result.code == 0, result
    return result.json()


def test_host_memory_makes_a_plan_faster_and_every_claim_is_verified(
    reprise: Reprise, graph: str
) -> None:
    alone, both = planned(reprise), planned(reprise, *LINK)
    (reprise.folder / "both.plan.json").write_text(json.dumps(both))

    verified = reprise("verify", graph, "both.plan.json")
    explained = reprise("explain", "both.plan.json")

    assert both["time_ns"] < alone["time_ns"]
    assert both["peak_bytes"] <= both["budget_bytes"] == alone["budget_bytes"]
    assert 0 < both["host_peak_bytes"] <= both["link"]["host_bytes"] == 60 << 30
    assert both["bound"] <= both["overhead"]
    assert both["bound_proof"] == "checked"
    assert {kind for kind, _ in both["schedule"]} == {"exec", "free", *COPIES}
    assert "On the host" in both["sentence"]
    assert verified.code == 0, verified
    assert verified.out.startswith("The schedule is valid")
    hosted = [line for line in explained.out.splitlines() if line.startswith("  host ")]
    assert hosted
    assert all(" hidden " in line or " awaited " in line for line in hosted)


@pytest.mark.parametrize("kind", COPIES)
def test_a_plan_that_lacks_a_copy_is_rejected(reprise: Reprise, graph: str, kind: str) -> None:
    plan = planned(reprise, *LINK)
    at = next(i for i, entry in enumerate(plan["schedule"]) if entry[0] == kind)
    del plan["schedule"][at]
    (reprise.folder / "changed.plan.json").write_text(json.dumps(plan))

    result = reprise("verify", graph, "changed.plan.json")

    assert result.code == 1, result
    assert result.out.startswith("Not true: ")


def test_without_a_host_budget_a_plan_has_no_word_of_it(reprise: Reprise, graph: str) -> None:
    plan = planned(reprise)

    assert "link" not in plan
    assert {kind for kind, _ in plan["schedule"]} == {"exec", "free"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--link", "52GB/s"), "give both"),
        (("--host-budget", "60GiB"), "give both"),
        (("--link", "52GB", "--host-budget", "60GiB"), "must be bytes a second, such as 55GB/s"),
        (("--link", "fast/s", "--host-budget", "60GiB"), "must be bytes a second"),
        (("--link", "52GB/s", "--host-budget", "0.5x"), "must be bytes, such as 60GiB"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    reprise: Reprise, graph: str, flags: tuple[str, ...], says: str
) -> None:
    assert says in reprise.fails(2, "plan", graph, "--budget", "0.4x", *flags)


def test_a_graph_of_the_daemon_is_not_planned_with_host_memory(reprise: Reprise) -> None:
    said = reprise.fails(2, "plan", "00000000000000ab", "--budget", "0.4x", *LINK)

    assert "plans graph files alone" in said


@pytest.mark.parametrize("asked", ["auto", "60GiB", "0"])
def test_a_job_is_told_how_much_host_memory_its_plans_may_use(reprise: Reprise, asked: str) -> None:
    said = reprise("run", "--host-budget", asked, "--", "printenv", "REPRISE_HOST_BUDGET")

    assert said.code == 0
    assert said.out == f"{asked}\n"


@pytest.mark.parametrize("asked", ["half", "0.5x", "fit"])
def test_a_host_budget_of_a_job_is_bytes_or_auto(reprise: Reprise, asked: str) -> None:
    said = reprise.fails(2, "run", "--host-budget", asked, "--", "true")

    assert "must be bytes, such as 60GiB, or auto" in said
