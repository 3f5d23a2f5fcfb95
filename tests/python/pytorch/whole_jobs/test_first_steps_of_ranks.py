# SPDX-License-Identifier: Apache-2.0
"""The first steps of several ranks: each has a plan from shapes of its own, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

TRAIN = """
import json, os, sys, torch, reprise
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
planned, kind = sys.argv[1] == "planned", sys.argv[2]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.set_num_threads(1); torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
        if kind == "buffers":
            self.register_buffer("scale", torch.ones(64))
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if kind == "communicates":
            total = x.detach().sum()
            distributed.all_reduce(total)
        return x * self.scale if kind == "buffers" else x
model = Net()
if planned and kind == "inner":
    reprise.auto(model, budget="0.5x")
wrapper = DistributedDataParallel(model)
if planned and kind != "inner":
    reprise.auto(wrapper, budget="0.5x")
optimizer = torch.optim.AdamW(model.parameters())
draw = torch.Generator().manual_seed(rank)
losses = []
for step in range(12):
    optimizer.zero_grad()
    target = torch.randint(64, (2048,), generator=draw)
    loss = nn.functional.cross_entropy(wrapper(torch.randn(2048, 64, generator=draw)), target)
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
# The wrapper and the model inside are one job, whichever was armed.
report = reprise.report(wrapper if kind == "inner" else model)
weights = [p.detach().double().sum().item().hex() for p in model.parameters()]
said = {"rank": rank, "bits": [losses, weights], "planned": report.planned_steps,
        "above": report.over_budget_steps + report.unplanned_over_budget_steps,
        "left": report.mismatched_steps, "sentence": report.sentence}
os.write(1, (json.dumps(said) + "\\n").encode())
distributed.barrier()
distributed.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("kind", ["wrapper", "communicates", "inner", "buffers"])
def test_ranks_are_planned_from_their_first_step_or_say_why_not(
    home: Path, agent_library: Path, daemon_binary: Path, tmp_path: Path, kind: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    environment = {
        **os.environ,
        "REPRISE_AGENT": str(agent_library),
        "REPRISE_DAEMON": str(daemon_binary),
        "OMP_NUM_THREADS": "1",
    }

    def run(how: str) -> tuple[list[dict[str, Any]], str]:
        done = subprocess.run(
            [*TORCHRUN, str(script), how, kind],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return sorted(ranks, key=lambda said: int(said["rank"])), done.stderr

    plain, _ = run("plain")
    ranks, errors = run("planned")

    assert [said["bits"] for said in ranks] == [said["bits"] for said in plain]
    for said in ranks:
        assert said["left"] == 0, said
        if kind == "communicates":
            assert 0 < said["planned"] < 12
        else:
            assert (said["planned"], said["above"]) == (12, 0), said
    if kind == "communicates":
        assert "the forward communicates with other ranks (c10d::allreduce_" in errors
    else:
        assert errors.count("the first steps run under a plan made from their shapes alone") == 2
