# SPDX-License-Identifier: Apache-2.0
"""Random models on two ranks, half of them with host memory, and experts that are divided among
them, have the bits of their plain jobs and keep their budgets.

REPRISE_RANK_PROGRAMS=100 looks longer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from on_ranks import run_ranks

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

PROGRAMS = int(os.environ.get("REPRISE_RANK_PROGRAMS", "6"))


def on_two_ranks(root: Path, job: str, *arguments: str, timeout: float) -> list[str]:
    """Runs a job of two ranks to its end; returns what each of them has printed."""
    environment = {"PYTHONPATH": str(root / "clients/python/src")}
    ranks = run_ranks(job, *arguments, environments=(environment,) * 2, timeout=timeout)
    for rank in ranks:
        assert rank.code == 0, rank.errors
    return [rank.out for rank in ranks]


@pytest.mark.long
def test_random_models_on_two_ranks_train_as_they_do_plainly(root: Path) -> None:
    planned = hosted = 0
    arguments, timeout = ("0", str(PROGRAMS)), 60 + 30 * PROGRAMS
    for out in on_two_ranks(root, "random_ranks_job.py", *arguments, timeout=timeout):
        results = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert {result["seed"] for result in results} == set(range(PROGRAMS))
        for result in results:
            assert result["equal"], result
            assert result["failed"] == 0, result
            # A share is of the step alone; in bytes, nothing may fit of steps that keep gradients.
            in_bytes = not result["budget"].endswith("x")
            assert result["over"] == 0 or (in_bytes and result["said"]), result
            planned += result["planned"]
            hosted += result["host"] > 0
    assert planned >= PROGRAMS
    assert hosted > 0


@pytest.mark.long
def test_a_step_that_all_ranks_capture_runs_under_a_plan_that_has_just_replaced_another(
    root: Path,
) -> None:
    # Program 74 keeps its gradients in the fourth step for the first time, and that is captured.
    for out in on_two_ranks(root, "random_ranks_job.py", "74", "75", timeout=120):
        (result,) = (json.loads(line) for line in out.splitlines() if line.startswith("{"))
        assert result["planned"] == 10, result
        assert result["over"] == 0, result


# At 0.3x nothing fits that holds back as much as the first plan would.
@pytest.mark.mostly_long(2)
@pytest.mark.parametrize("budget", ["0.3x", "0.5x", "0.8x"])
def test_tokens_that_are_sent_to_experts_of_other_ranks_keep_to_the_budget(
    root: Path, budget: str
) -> None:
    plain, planned = (
        [json.loads(out) for out in on_two_ranks(root, "experts_job.py", b, "30", timeout=300)]
        for b in ("none", budget)
    )

    for before, after in zip(plain, planned, strict=True):
        assert after["seen"] == before["seen"]
        assert after["failed"] == 0
        assert after["planned"] >= 20, after["sentence"]
        assert after["over"] == 0, after["sentence"]
