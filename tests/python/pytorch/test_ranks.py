# SPDX-License-Identifier: Apache-2.0
"""Two ranks on one machine: one plan for both, the gradients of the job without it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("ddp_job.py")


@pytest.fixture
def two_ranks(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path
) -> Callable[..., list[dict[str, Any]]]:
    def run(budget: str, mode: str = "same", fails: bool = False) -> list[dict[str, Any]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        environment = {
            **os.environ,
            "PYTHONPATH": str(root / "clients/python/src"),
            "REPRISE_AGENT": str(agent_library),
            "REPRISE_DAEMON": str(daemon_binary),
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, str(JOB), str(rank), port, budget, mode],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        found = []
        for process in ranks:
            out, errors = process.communicate(timeout=300)
            if fails:
                assert process.returncode != 0
                found.append({"errors": errors})
                continue
            assert process.returncode == 0, errors
            found.append({**json.loads(out.splitlines()[-1]), "errors": errors})
        return found

    return run


def test_both_ranks_run_one_plan_and_no_bit_changes(two_ranks: Any) -> None:
    plain = two_ranks("none")

    planned = two_ranks("0.6x")

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        assert after["planned"] == 9, after["errors"]
        assert after["checks"] > 0
        assert after["failed"] == 0
        assert after["held"]
    assert planned[0]["plan"] == planned[1]["plan"] != ""


def test_ranks_with_different_programs_train_without_a_plan_and_say_so(two_ranks: Any) -> None:
    found = two_ranks("0.6x", "odd")

    for rank in found:
        assert rank["planned"] == 0
        assert rank["errors"].count("rank 1 runs another program than rank 0") == 1


def test_each_size_has_one_plan_for_both_ranks_whatever_they_see_in_the_same_step(
    two_ranks: Any,
) -> None:
    plain = two_ranks("none", "shapes")

    planned = two_ranks("0.6x", "shapes")

    for before, after in zip(plain, planned, strict=True):
        assert after["losses"] == before["losses"]
        assert after["parameters"] == before["parameters"]
        # Step 8 has a larger input on one rank: the ranks meet in step 16, capture the next step
        # in which one of them sees it, and have its plan in the one after the next meeting.
        assert after["rungs"] == 2, after["errors"]
        assert after["mismatched"] == 0
        assert after["failed"] == 0
        assert after["planned"] == 24 - 2 - 2
    assert planned[0]["sizes"] == planned[1]["sizes"] == [8 * 3 * 32 * 32, 16 * 3 * 32 * 32]


def test_a_rank_that_stops_stops_both_at_their_next_meeting(two_ranks: Any) -> None:
    plain = two_ranks("none", "drop")

    found = two_ranks("0.6x", "drop")

    for before, after in zip(plain, found, strict=True):
        assert after["losses"] == before["losses"]
        assert after["errors"].count("rank 1 has had enough") == 1, [r["errors"] for r in found]
    # Steps 4 to 6 under the plan on rank 1, until the meeting in step 16 on rank 0.
    assert [rank["planned"] for rank in found] == [12, 3]


def test_a_rank_that_runs_out_of_memory_makes_the_next_start_ask_for_less(two_ranks: Any) -> None:
    before = two_ranks("0.9x")
    failed = two_ranks("0.9x", "oom", fails=True)

    after = two_ranks("0.9x")

    assert "OutOfMemoryError: too much" in failed[1]["errors"]
    for was, rank in zip(before, after, strict=True):
        assert rank["budget"] < was["budget"]
        assert rank["failed"] == 0
        assert rank["losses"] == was["losses"]
    assert "asks for a plan within 90.0 % of the budget" in after[0]["errors"]
