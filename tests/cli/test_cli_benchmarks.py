# SPDX-License-Identifier: Apache-2.0
"""The public benchmark graphs: every plan is valid or a proven refusal.

The product does not ship these files: REPRISE_GRAPHS names their folder, else the one that a
checkout may have beside it, and the tests are skipped, visibly, where there is none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from check_plan import check, working_set
from cli_program import ROOT, Reprise

FOLDER = Path(os.environ.get("REPRISE_GRAPHS") or ROOT.parent / "shared" / "graphs")
GRAPHS = sorted(FOLDER.glob("*.json"))


@pytest.mark.skipif(not GRAPHS, reason=f"no graphs in {FOLDER}: set REPRISE_GRAPHS")
@pytest.mark.parametrize("budget", ["0.9x", "0.7x", "0.5x"])
@pytest.mark.parametrize("path", GRAPHS, ids=lambda p: p.stem)
def test_a_plan_is_valid_or_a_proven_refusal(reprise: Reprise, path: Path, budget: str) -> None:
    graph = json.loads(path.read_text())

    # The hardest cell has its first plan after two seconds of a core of its own.
    hard = path.stem == "layered_500" and budget == "0.5x"
    limit = ("--time-limit", "15s") if hard else ()
    result = reprise("plan", str(path), "--budget", budget, "--json", *limit, timeout=300)

    assert result.code in (0, 3), result.err
    plan = result.json()
    check(graph, plan)
    if not plan["feasible"]:
        # Proven by one op alone: anyone can add up what it needs.
        assert plan["smallest_budget_bytes"] >= working_set(graph)[0]


@pytest.mark.skipif(not GRAPHS, reason=f"no graphs in {FOLDER}: set REPRISE_GRAPHS")
def test_the_solver_s_own_words_never_mix_with_the_answer(reprise: Reprise) -> None:
    # One of two searches ends first and interrupts the other's integer program.
    limits = ("--gap", "0.1%", "--time-limit", "30s", "--threads", "2")
    for _ in range(4):
        result = reprise(
            "plan", str(FOLDER / "layered_500.json"), "--budget", "0.9x", *limits, "--json"
        )

        assert result.code == 0, result.err
        assert result.out.startswith("{")
