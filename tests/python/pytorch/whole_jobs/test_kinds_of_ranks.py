# SPDX-License-Identifier: Apache-2.0
"""Ranks that run different ops, hold parts of the model or split its tensors train under plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

# Optimizers of different parameters; parameters that are gathered; stages; shards of tensors.
JOBS = ("zero1", "fsdp1", "1f1b", "tensor-parallel")


@pytest.mark.long
def test_each_kind_of_ranks_is_validated_with_equal_bits_and_collectives(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path, tmp_path: Path
) -> None:
    command = [sys.executable, str(root / "bench/ranks/ranks.py"), "--out", str(tmp_path / "found")]
    ours = {"REPRISE_AGENT": str(agent_library), "REPRISE_DAEMON": str(daemon_binary)}

    done = subprocess.run(
        [*command, "--way", "auto", "--steps", "10", *(f"--job={name}" for name in JOBS)],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    rows = {row["job"]: row for row in json.loads((tmp_path / "found.json").read_text())}
    assert {name: rows[name]["auto"]["outcome"] for name in JOBS} == dict.fromkeys(
        JOBS, "validated"
    ), done.stdout
    reports = [r for row in rows.values() for rank in row["auto"]["reports"] for r in rank]
    assert len(reports) == 2 * len(JOBS)
    for report in reports:
        assert report["planned_steps"], report
        assert report["checks"], report
        assert not report["mismatched_steps"] + report["failed_checks"], report
        measured, predicted = report["measured_peak_bytes"], report["predicted_peak_bytes"]
        assert 0.98 * predicted < measured <= report["budget_bytes"], report
