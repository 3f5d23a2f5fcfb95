# SPDX-License-Identifier: Apache-2.0
"""Programs as people have them: a training script under `reprise run`, and the C++ example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import kit
from runner import Block, Here, Row, Skip
from training import added

HERE = Path(__file__).resolve().parents[1]
LAST = 1200  # characters of a program's output that are kept


def script(here: Here, *before: str) -> None:
    """The script, plainly or under `reprise run`; its last line is JSON."""
    command = [*before, sys.executable, str(HERE / "user_script.py")]
    if here.rehearsal:
        command.append("--small")
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    said = run.stdout.strip().splitlines()
    lines = [line for line in run.stderr.splitlines() if line.startswith("reprise:")]
    here.say(exit=run.returncode, says="\n".join(lines)[-LAST:])
    if run.returncode != 0 or not said:
        raise RuntimeError((run.stderr.strip().splitlines() or ["no word"])[-1])
    figures = json.loads(said[-1])
    here.say(**figures)
    if before:
        plain = here.found("script, plain")
        here.say(
            losses_beside_plain="equal" if plain["losses"] == figures["losses"] else "differ",
            added=added(figures["step_ms"], plain["step_ms"]),
        )


def under_run(here: Here) -> None:
    script(here, kit.command(), "run", "--budget", "0.5x", "--")


def example(here: Here) -> None:
    """The CUDA C++ loop under its plan; in a rehearsal with loops in the place of kernels."""
    name = "REPRISE_TRAIN_MLP_HOST" if here.rehearsal else "REPRISE_TRAIN_MLP"
    if name not in os.environ:
        raise Skip("the kit has no CUDA C++ example: there was no nvcc where it was made")
    size = ("24", "64", "256") if here.rehearsal else ("48", "512", "8192")
    command = [os.environ[name], "--budget", "0.5x"]
    for option, value in zip(("--layers", "--width", "--batch"), size, strict=True):
        command += [option, value]
    folder = str(Path(os.environ["REPRISE_AGENT"]).parent)
    run = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, [folder, os.environ.get("LD_LIBRARY_PATH", "")]))},
    )  # fmt: skip
    here.say(
        exit=run.returncode,
        planned=", planned" in run.stdout,
        equal="equal bit for bit" in run.stdout,
        says=run.stdout[-LAST:] + run.stderr[-LAST:],
    )
    if run.returncode != 0:
        raise RuntimeError((run.stderr.strip().splitlines() or ["no word"])[-1])


PROGRAMS = Block(
    "programs",
    "Do a training script under `reprise run` and a loop in C++ keep their budget?",
    50.0,
    (
        Row("script, plain", script, 40),
        Row("script, reprise run", under_run, 60),
        Row("C++ example", example, 30),
    ),
)
