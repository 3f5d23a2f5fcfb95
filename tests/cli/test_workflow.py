# SPDX-License-Identifier: Apache-2.0
"""The workflow for pull requests: passes where a step holds what it held, and fails otherwise."""

from __future__ import annotations

import re
import subprocess
import textwrap

import pytest
from cli_program import ROOT, Reprise

WORKFLOW = (ROOT / "examples/memory_regressions.yml").read_text()
PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, {width}), nn.GELU(), nn.Linear({width}, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.train
@pytest.mark.parametrize(("after", "fails"), [(256, False), (300, True)], ids=["same", "more"])
def test_a_change_that_takes_more_memory_fails_and_says_whose_it_is(
    after: int, fails: bool, reprise: Reprise
) -> None:
    for side, width in (("before", 256), ("after", after)):
        (reprise.folder / side).mkdir()
        (reprise.folder / side / "train.py").write_text(PROGRAM.format(width=width))
    summary = reprise.folder / "summary"
    given = {"PATH": reprise.path, "TRAIN": "python train.py", "GITHUB_STEP_SUMMARY": str(summary)}
    given["REPRISE_LINGER"] = "20"  # the daemon has the runs when they are compared
    scripts = re.findall(r"shell: bash\n +run: \|\n((?: {10}.*\n)+)", WORKFLOW)
    assert len(scripts) == 2

    done = [
        # As GitHub runs it.
        subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", textwrap.dedent(script)],
            cwd=reprise.folder,
            env={**reprise.environment, **given},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        for script in scripts
    ]

    assert [one.returncode for one in done] == [0, int(fails)], [(o.stdout, o.stderr) for o in done]
    said = summary.read_text()
    assert ("A and B are equal" in said) is not fails
    assert ("BY MODULE" in said) is fails
