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


# ---- Several nodes ----

# Slurm starts the command once on each node, all at a time.
SRUN = """#!/bin/sh
shift # --kill-on-bad-exit
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
wait $first && wait $second
"""
TORCHRUN = """#!/bin/sh
echo "torchrun $* under $REPRISE_BUDGET" > "$SLURM_SUBMIT_DIR/torchrun-$SLURM_NODEID"
exit "${TORCHRUN_ENDS:-0}"
"""


def nodes(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    tools, local = folder / "tools", folder / "local"
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho node17\necho node18\n",
        "torchrun": TORCHRUN,
    }.items():
        tools.mkdir(exist_ok=True)
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    local.mkdir()
    (folder / "token").write_text("0123456789abcdef0123456789abcdef\n")
    return subprocess.run(
        ["bash", SCRIPT.with_name("train-nodes.sbatch"), *command],
        cwd=folder,
        env={
            "PATH": f"{tools}:{ROOT / 'build/bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TMPDIR": str(local),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NAME": "train",
            "SLURM_JOB_NODELIST": "node[17-18]",
            "SLURM_NNODES": "2",
            "SLURM_NODEID": "0",
            "SLURM_SUBMIT_DIR": str(folder),
            "BUDGET": "0.6x",
            "RANKS": "4",
            # Nobody is there: the job goes on.
            "REPRISE_FORWARD_TO": "127.0.0.1:1",
            "REPRISE_FORWARD_TOKEN_FILE": str(folder / "token"),
        }
        | more,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_job_of_two_nodes_goes_on_without_the_centre_and_keeps_what_it_did_not_take(
    folder: Path,
) -> None:
    done = nodes(folder, "train.py", "--epochs", "3")

    assert done.returncode == 0, done.stderr
    for node in range(2):
        assert (folder / f"torchrun-{node}").read_text() == (
            f"torchrun --nnodes 2 --node-rank {node} --nproc-per-node 4 --master-addr node17 "
            "--master-port 20017 train.py --epochs 3 under 0.6x\n"
        )
        assert (folder / f"reprise-17/node-{node}/forward.db").exists()
    assert list((folder / "local").iterdir()) == []


def test_a_job_of_two_nodes_has_the_exit_code_of_its_ranks(folder: Path) -> None:
    assert nodes(folder, "train.py", TORCHRUN_ENDS="5").returncode == 5


def test_a_job_of_several_nodes_says_what_it_lacks(folder: Path) -> None:
    assert "usage: sbatch train-nodes.sbatch SCRIPT" in nodes(folder).stderr
    (folder / "local").rmdir()
    assert "HOST:PORT of the central daemon" in nodes(folder, "x", REPRISE_FORWARD_TO="").stderr
