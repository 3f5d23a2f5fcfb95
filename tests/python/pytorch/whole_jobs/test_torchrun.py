# SPDX-License-Identifier: Apache-2.0
"""torchrun under `reprise run`, and `reprise run` under torchrun: one job, one run, one verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

# A thread of Gloo's that still lets go of a tensor while the interpreter is taken down aborts it,
# also in a job that Reprise leaves alone: so the job waits for them.
TRAIN = """
import os, sys, time, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo")
rank, ends = distributed.get_rank(), sys.argv[1]
torch.set_num_threads(1); torch.manual_seed(0)
def mlp(): return nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.Dropout(.1))
model = DistributedDataParallel(nn.Sequential(*[mlp() for _ in range(6)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(256, 128)).square().mean()
    if ends == "killed" and rank == 1 and step == 9:
        os.kill(os.getpid(), 9)
    loss.backward()
    optimizer.step()
    os.write(1, f"rank {rank} {loss.item().hex()}\\n".encode())
distributed.barrier()
del model, optimizer, loss
distributed.destroy_process_group()
time.sleep(0.5)
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command."""

    losses: list[list[str]]  # by rank
    said: list[str]  # on standard output besides
    errors: str


@pytest.fixture
def job(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path, tmp_path: Path
) -> Callable[..., Done]:
    command = daemon_binary.with_name("reprise")
    if not command.is_file():
        pytest.fail(f"{command}: not built; run scripts/build", pytrace=False)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    under = [str(command), "run", "--budget", "0.75x", "--"]
    lines = {
        "plain": [*TORCHRUN, str(script)],
        "outside": [*under, *TORCHRUN, str(script)],
        "inside": [*TORCHRUN, "--no-python", *under, sys.executable, str(script)],
    }

    def run(where: str, ends: str = "well", code: int = 0) -> Done:
        environment = {
            **os.environ,
            "REPRISE_LAUNCH": str(root / "clients/python/src/reprise/launch"),
            "REPRISE_AGENT": str(agent_library),
            "REPRISE_DAEMON": str(daemon_binary),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(root / "clients/python/src"), os.environ.get("PYTHONPATH", "")]
            ),
        }
        done = subprocess.run(
            [*lines[where], ends],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == code, done.stderr
        out = done.stdout.splitlines()
        losses = [
            [line.split()[2] for line in out if line.startswith(f"rank {rank} ")]
            for rank in range(2)
        ]
        errors = done.stderr.splitlines()
        verdicts = [i for i, line in enumerate(errors) if line.startswith("It fits in ")]
        said = errors[verdicts[0] :] if verdicts else []
        assert len(verdicts) <= 1, "one job has one verdict"
        return Done(losses, said, done.stderr)

    return run


@pytest.mark.long
def test_the_ranks_of_a_torchrun_are_one_run_with_one_verdict(job: Any) -> None:
    plain = job("plain")
    assert [len(losses) for losses in plain.losses] == [12, 12]

    for where in ("outside", "inside"):
        found = job(where)

        assert found.losses == plain.losses
        verdict = found.said[0]
        assert "bit for bit equal in" in verdict
        assert found.errors.count("\nNext:  reprise show ") == 1
        assert found.errors.count("reprise: It fits in ") == 1
        assert found.errors.count("reprise: rank 1: It fits in ") == 1


@pytest.mark.long
def test_a_rank_that_is_killed_is_named_and_the_exit_code_is_that_of_torchrun(job: Any) -> None:
    found = job("outside", "killed", code=1)

    _, *rest = found.said
    assert any("rank 1: Killed in step 10, " in line for line in rest), rest
