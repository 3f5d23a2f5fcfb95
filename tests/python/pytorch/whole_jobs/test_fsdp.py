# SPDX-License-Identifier: Apache-2.0
"""FSDP2: ops that read gathered parameters run again while these are there, from the first step."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp_job import KINDS, STEPS
from on_ranks import run_ranks

pytestmark = pytest.mark.e2e

# Prints by rank the losses, and digests of the sharded parameters and of the collectives.
# "compiled": its blocks are. "writes": it then changes a parameter between a forward and its
# backward.
TRAIN = """
import hashlib, os, sys, time, torch
import torch.nn.functional as F
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import fully_shard
distributed.init_process_group("gloo")
rank, how = distributed.get_rank(), sys.argv[1]
torch.set_num_threads(1); torch.manual_seed(0)
calls = []
for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
    def call(*args, inner=getattr(distributed, name), name=name, **kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a)]
        if not any(isinstance(a, FakeTensor) for a in tensors):  # of a copy, which asks no rank
            calls.append((name, [a.numel() for a in tensors]))
        return inner(*args, **kwargs)
    setattr(distributed, name, call)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
        self.drop = nn.Dropout(0.1)
    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return x.square().mean()
model = Model()
for block in model.blocks:
    if how == "compiled": block.compile(backend="aot_eager", fullgraph=True)
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for step in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 128, 64))
    loss.backward()
    optimizer.step()
    os.write(1, f"rank {rank} {loss.item().hex()}\\n".encode())
state = b"".join(p.to_local().detach().numpy().tobytes() for p in model.parameters())
seen = hashlib.sha256(state).hexdigest(), hashlib.sha256(repr(calls).encode()).hexdigest()
os.write(1, f"rank {rank} {seen}\\n".encode())
if how == "writes":
    loss = model(torch.randn(8, 128, 64))
    with torch.no_grad(): next(model.parameters()).mul_(2)
    try: loss.backward()
    except RuntimeError as error:
        sentence = str(error).partition(".")[0]
        os.write(1, f"rank {rank} {sentence}\\n".encode())
else: distributed.barrier()
del model, optimizer, loss
distributed.destroy_process_group()
time.sleep(0.5)
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def trained(command: list[str], how: str, environment: dict[str, str]) -> tuple[list[str], str]:
    """Returns what the ranks print, sorted by rank, and standard error."""
    done = subprocess.run(
        [*command, how],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    return sorted(lines, key=lambda line: line.split()[1]), done.stderr


@pytest.fixture
def under(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path, tmp_path: Path
) -> Callable[[str, bool], tuple[list[str], str]]:
    """Trains in two ranks, plainly or under `reprise run`."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    job = [*TORCHRUN, str(script)]
    ours = {
        "REPRISE_LAUNCH": str(root / "clients/python/src/reprise/launch"),
        "REPRISE_AGENT": str(agent_library),
        "REPRISE_DAEMON": str(daemon_binary),
        "PYTHONPATH": str(root / "clients/python/src"),
    }
    run = [str(daemon_binary.with_name("reprise")), "run", "--budget", "0.45x", "--"]
    return lambda how, planned: trained([*run, *job] if planned else job, how, ours)


@pytest.mark.long
def test_a_sharded_model_trains_under_less_memory_with_the_same_bits_and_collectives(
    under: Callable[[str, bool], tuple[list[str], str]],
) -> None:
    plain, _ = under("plainly", False)
    planned, errors = under("writes", True)

    changed = "a parameter was changed between a forward and its backward"
    told = [line for line in planned if line.endswith(changed)]
    assert told == [f"rank {rank} {changed}" for rank in (0, 1)]
    assert [line for line in planned if line not in told] == plain
    verdict = next(line for line in errors.splitlines() if line.startswith("It fits in "))
    assert "bit for bit equal in" in verdict
    off = re.search(r"Measured [0-9.]+ MiB \(([+-][0-9.]+) %\)", verdict)
    assert off is not None, verdict
    # Below where the captured step was one in which gloo freed late; never above.
    assert -2 <= float(off[1]) <= 0, verdict


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="this torch cannot keep two compilations of a block apart",
)
def test_compiled_blocks_of_a_sharded_model_are_planned_with_the_same_bits_and_collectives(
    under: Callable[[str, bool], tuple[list[str], str]],
) -> None:
    plain, _ = under("compiled", False)
    planned, errors = under("compiled", True)

    assert planned == plain
    verdict = next(line for line in errors.splitlines() if line.startswith("It fits in "))
    assert "gradients bit for bit equal in" in verdict
    assert "exceeded the budget" not in verdict


def planned_as_plain(root: Path, kind: str, **more: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Trains plainly and under a budget, in an environment with `more`; yields by rank what it has
    printed and its log. Bits are equal, and no planned step is above the budget."""
    environment = {"PYTHONPATH": str(root / "clients/python/src")}
    plain, planned = (
        run_ranks("fsdp_job.py", budget, kind, environments=(of,) * 2, timeout=200)
        for budget, of in (("none", environment), ("0.75x", environment | more))
    )
    for before, after in zip(plain, planned, strict=True):
        assert after.code == 0, after.errors
        result = json.loads(after.out.splitlines()[-1])
        assert result["seen"] == json.loads(before.out.splitlines()[-1])["seen"]
        assert result["failed"] == 0
        assert result["over"] == 0, result["sentence"]
        yield result, after.errors


@pytest.mark.usefixtures("one_daemon")
@pytest.mark.mostly_long(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_model_keeps_its_budget_from_the_first_step(root: Path, kind: str) -> None:
    for result, errors in planned_as_plain(root, kind):
        if kind == "offloaded":
            why = "the first steps run without a plan: fully_shard offloads parameters"
            assert why in errors
        else:
            assert result["planned"] == STEPS, (result["sentence"], errors)


@pytest.mark.usefixtures("one_daemon")
@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_model_sends_activations_to_host_memory(root: Path, kind: str) -> None:
    host = {"REPRISE_HOST_BUDGET": "64MiB", "REPRISE_SLOW_TIER": "20GB/s"}

    for _, errors in planned_as_plain(root, kind, **host):
        assert "go to the host" in errors
