"""The batch script, run as Slurm runs it: with its variables, in the folder it was sent from."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy/slurm/train.sbatch"


def batch(folder: Path, *command: str) -> subprocess.Popen[str]:
    local = folder / "local"
    local.mkdir()
    return subprocess.Popen(
        ["bash", SCRIPT, *command],
        cwd=folder,
        env={
            "PATH": f"{ROOT / 'build/bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TMPDIR": str(local),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NAME": "train",
            "SLURM_SUBMIT_DIR": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    # A short path: sockets have no room for pytest's.
    with tempfile.TemporaryDirectory(prefix="rp", dir="/tmp") as name:
        yield Path(name)


def test_the_job_keeps_its_exit_code_and_what_was_recorded(folder: Path) -> None:
    process = batch(folder, "sh", "-c", 'echo "trained $REPRISE_BUDGET"; exit 3')
    out, err = process.communicate(timeout=120)

    assert process.returncode == 3, err
    assert out == "trained 0.5x\n"
    assert (folder / "reprise-17/reprise.db").exists()
    assert list((folder / "local").iterdir()) == []


def test_a_signal_before_the_time_limit_reaches_the_job(folder: Path) -> None:
    process = batch(folder, "sh", "-c", "trap 'echo saved; exit 0' TERM; touch on; sleep 60 & wait")
    deadline = time.monotonic() + 60
    while not (folder / "on").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)

    assert out == "saved\n", err
    assert process.returncode == 0, err
    assert (folder / "reprise-17/reprise.db").exists()


def test_without_a_command_it_says_how_it_is_used(folder: Path) -> None:
    process = batch(folder)

    assert "usage: sbatch train.sbatch COMMAND" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
