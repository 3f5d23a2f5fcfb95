# SPDX-License-Identifier: Apache-2.0
"""The examples for the loops of other libraries train with the same bits under a plan."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.trainers.conftest import ROOT

TWO_RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("library", "launcher", "more"),
    [
        ("accelerate", [], []),
        ("accelerate", TWO_RANKS, []),
        ("lightning", [], []),
        # Of a small batch, DeepSpeed's own buffers are the peak.
        ("deepspeed", TWO_RANKS, ["--stage", "1", "--batch", "1024"]),
        ("deepspeed", TWO_RANKS, ["--stage", "3", "--batch", "1024"]),
    ],
    ids=["accelerate", "accelerate-two-ranks", "lightning", "zero-1", "zero-3"],
)
def test_an_example_trains_under_a_plan_with_the_same_losses(
    library: str, launcher: list[str], more: list[str]
) -> None:
    def run(*arguments: str) -> list[str]:
        path = ROOT / f"examples/train_{library}.py"
        command = [*launcher, str(path), "--steps", "9", "--batch", "64", *more, *arguments]
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = ("step ", "It fits in ")  # DeepSpeed's own log is on the same stream
        return [line for line in done.stdout.splitlines() if line.startswith(told)]

    plain, planned = run(), run("--budget", "0.6x")

    assert len(plain) == 9
    assert planned[:9] == plain
    assert planned[9].startswith("It fits in ")
    assert "bit for bit equal" in planned[9]
    assert "exceeded the budget" not in planned[9]
