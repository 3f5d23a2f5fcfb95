# SPDX-License-Identifier: Apache-2.0
"""SKILL.md: what it tells coding agents to type works when it is typed, in its order."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from cli_program import ROOT, Reprise

SKILL = (ROOT / "SKILL.md").read_text()
COMMANDS = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
layers = [part for _ in range(6) for part in (nn.Linear(256, 256), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(9):
    x, y = torch.randn(1536, 256), torch.randint(0, 10, (1536,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
"""


@pytest.mark.long
@pytest.mark.train
def test_every_command_works_when_it_is_typed(reprise: Reprise) -> None:
    (reprise.folder / "train.py").write_text(PROGRAM)
    said = {}

    for command in COMMANDS:
        done = subprocess.run(
            shlex.split(command),
            cwd=reprise.folder,
            env={**reprise.environment, "PATH": reprise.path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        said[command] = done.stdout + done.stderr

    planned = said["reprise run --budget 24MiB python train.py"]
    assert "It fits in 24.0 MiB." in planned
    assert "bit for bit equal" in planned
    # The same losses with and without a plan.
    (plain,) = re.findall("loss .*", said["reprise run python train.py"])
    assert plain in planned
    assert "largest with a plan" in said["reprise fit --budget 24MiB python train.py"]
    assert "AT THE MEASURED PEAK" in said["reprise show latest"]
    assert "WHAT THE PLAN DOES" in said["reprise explain latest --budget 0.5x"]
    assert (reprise.folder / "memory.html").stat().st_size > 1000


def test_it_is_short_and_names_only_files_that_exist() -> None:
    assert len(SKILL.splitlines()) <= 100
    for file in re.findall(r"\]\(([^)]+)\)", SKILL):
        assert (ROOT / file).exists(), file
