# SPDX-License-Identifier: Apache-2.0
"""Ranks that one launcher starts are one run; any other process is a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from reprise.agent.launched import shared_run_id

RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0"}


def run_ids(root: Path, *ranks: dict[str, str]) -> list[str]:
    """Returns the run ids of several children of one process."""
    program = "from reprise.agent.launched import shared_run_id; print(shared_run_id())"
    base = {k: v for k, v in os.environ.items() if k not in RANK}
    base["PYTHONPATH"] = str(root / "clients/python/src")
    return [
        subprocess.check_output([sys.executable, "-c", program], env={**base, **rank}, text=True)
        .strip()
        for rank in ranks
    ]  # fmt: skip


def test_ranks_of_one_parent_and_one_attempt_have_one_run(root: Path) -> None:
    again = {**RANK, "TORCHELASTIC_RESTART_COUNT": "1"}

    first, second, restarted = run_ids(root, {**RANK, "RANK": "0"}, RANK, again)

    assert first == second != restarted
    assert uuid.UUID(first).version == 7


@pytest.mark.parametrize(
    "rank",
    [
        {},
        {**RANK, "RANK": "2"},
        {**RANK, "RANK": "one"},
        {**RANK, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0"},
        {**RANK, "WORLD_SIZE": "4"},
    ],
    ids=["no rank", "no such rank", "no number", "alone", "several machines"],
)
def test_other_processes_are_separate_runs(
    rank: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in RANK:
        monkeypatch.delenv(name, raising=False)
    for name, value in rank.items():
        monkeypatch.setenv(name, value)

    assert shared_run_id() is None
