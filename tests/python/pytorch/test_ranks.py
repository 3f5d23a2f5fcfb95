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
    def run(budget: str, mode: str = "same") -> list[dict[str, Any]]:
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
