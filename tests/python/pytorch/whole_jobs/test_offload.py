# SPDX-License-Identifier: Apache-2.0
"""Jobs whose plans use host memory, with the real agent, daemon and planner, on the slow tier."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

PROGRAM = """
import dataclasses, json, sys
import torch
from torch import nn
from torch.nn import functional as F
which, host, extra = sys.argv[1:4]
torch.set_num_threads(1)
torch.manual_seed(0)

class Attention(nn.Module):
    def __init__(self, width, heads, rotates):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=not rotates), nn.Linear(width, width)
        self.heads, self.rotates = heads, rotates
    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotates:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))

def rotated(x):
    t, d = x.shape[-2:]
    angle = torch.arange(t)[:, None] / 100 ** (torch.arange(0, d, 2) / d)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

class SwiGLU(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False),
            nn.Linear(3 * width, width, bias=False))
    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        llama = which == "llama"
        norm = RMSNorm if llama else nn.LayerNorm
        self.one, self.other = norm(width), norm(width)
        self.attention = Attention(width, 4, llama)
        self.mlp = SwiGLU(width) if llama else nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
    def forward(self, x):
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.other(x))

class Net(nn.Module):
    def __init__(self, width=128, depth=6, words=256):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words)
    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

import reprise
if extra == "refused":
    from reprise.torch.offload import slow_tier
    from reprise.torch.tape import link
    link._measured = lambda tier, device: {
        f"{way}_{size}": max(1, size // 4) for way in ("out", "in", "both") for size in link.SIZES}
    def refuse(size):
        raise OSError("nothing is left")
    slow_tier.host_buffer = refuse
if extra == "corrupt":
    from reprise.torch.tape.parked import Parked
    take = Parked.take
    def corrupt(self, storage):
        made = take(self, storage)
        made[0] += 1
        return made
    Parked.take = corrupt
model = Net()
optimizers = [torch.optim.AdamW(model.parameters())]
if extra == "two":
    optimizers = [torch.optim.AdamW(model.blocks.parameters()),
                  torch.optim.SGD([*model.embed.parameters(), *model.head.parameters()], 0.1, 0.9)]
if extra == "corrupt state":
    from reprise.torch.offload.slow_tier import SlowTier
    back = SlowTier.back
    def corrupt(self, source, target):
        done = back(self, source, target)
        done.wait()
        target[0] += 1
        return done
    SlowTier.back = corrupt
budget = {"batches": "0.4x", "state": "20MiB", "corrupt state": "20MiB", "keeps": "28MiB"}.get(
    extra, "0.3x")
reprise.auto(model, budget, host_budget=host, warmup=2, first="plain", verify_every=4)
several = 2 if extra == "batches" else 1
peaks, losses = [], []
for step in range(12):
    for optimizer in optimizers:
        if extra != "keeps" or step % 3 != 1:
            optimizer.zero_grad()
    if extra == "fails" and step % 3 == 0:
        handle = model.head.register_forward_pre_hook(lambda *_: 1 / 0)
        try:
            model(torch.randint(0, 256, (4, 192)))
        except ZeroDivisionError:
            handle.remove()
    for _ in range(several):
        x = torch.randint(0, 256, (4, 193))
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        (loss / several).backward()
        losses.append(loss.item().hex())
    if extra == "looks" and step:
        losses.append(sum(s["exp_avg"].sum().item() for s in optimizer.state.values()).hex())
    for optimizer in optimizers:
        optimizer.step()
    report = reprise.report(model)
    if report.planned_steps:
        peaks.append(report.measured_peak_bytes)
text = {"losses": losses, "peaks": peaks, "host": report.host_bytes}
text["weights"] = sum(p.double().sum().item() for p in model.parameters()).hex()
print(json.dumps({**{k: v for k, v in dataclasses.asdict(report).items() if k != "plan"}, **text}))
"""


@pytest.fixture
def train(
    python: Callable[..., Any], home: Path, agent_library: Path, daemon_binary: Path
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Trains in a separate process; the client starts the private daemon."""

    built = {"REPRISE_AGENT": str(agent_library), "REPRISE_DAEMON": str(daemon_binary)}

    def run(which: str, host: str, extra: str = "", **environment: str) -> Any:
        settings = built | {"REPRISE_SLOW_TIER": "2GB/s"} | environment
        done = python("-c", PROGRAM, which, host, extra, **settings)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


@pytest.mark.mostly_long(1)
@pytest.mark.parametrize(
    ("which", "extra"), [("gpt", ""), ("llama", ""), ("gpt", "batches"), ("llama", "batches")]
)
def test_a_job_with_host_memory_keeps_its_budget_and_every_bit(
    train: Any, which: str, extra: str
) -> None:
    plain, _ = train(which, "1GiB", extra, REPRISE_DISABLE="1")

    report, errors = train(which, "1GiB", extra)

    assert report["losses"] == plain["losses"]
    assert report["weights"] == plain["weights"]
    assert report["host"] > 1 << 20, errors
    assert report["validated"], errors
    assert report["mismatched_steps"] == report["over_budget_steps"] == 0
    # The captured step held a loss that planned ones do not.
    assert all(0 <= report["predicted_peak_bytes"] - peak <= 64 for peak in report["peaks"])
    assert report["predicted_peak_bytes"] <= report["budget_bytes"]
    assert "go to the host" in errors


@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("extra", ["state", "looks", "two", "fails"])
def test_optimizer_state_leaves_while_activations_are_there(train: Any, extra: str) -> None:
    plain, _ = train("gpt", "1GiB", extra, REPRISE_DISABLE="1")

    report, errors = train("gpt", "1GiB", extra)

    assert report["losses"] == plain["losses"]
    assert report["weights"] == plain["weights"]
    assert "of it optimizer state" in errors
    assert report["planned_steps"] > 4
    assert report["gradients_equal"] or report["values_equal"]
    if extra in ("state", "two"):  # the others hold more than their captured step, or give steps up
        assert report["validated"], errors
        assert report["mismatched_steps"] == report["over_budget_steps"] == 0
        assert all(0 <= report["predicted_peak_bytes"] - peak <= 64 for peak in report["peaks"])


def test_a_plan_for_steps_with_more_alive_beside_them_uses_host_memory(train: Any) -> None:
    plain, _ = train("gpt", "1GiB", "keeps", REPRISE_DISABLE="1")

    report, errors = train("gpt", "1GiB", "keeps")

    assert "requesting a plan for such steps" in errors
    assert errors.count("go to the host") >= 2, errors
    assert report["losses"] == plain["losses"]
    assert report["weights"] == plain["weights"]
    assert report["mismatched_steps"] == report["over_budget_steps"] == 0, errors
    assert max(report["peaks"]) <= report["budget_bytes"]


def test_optimizer_state_that_comes_back_wrong_ends_the_program(
    python: Callable[..., Any], home: Path, agent_library: Path, daemon_binary: Path
) -> None:
    built = {"REPRISE_AGENT": str(agent_library), "REPRISE_DAEMON": str(daemon_binary)}

    done = python("-c", PROGRAM, "gpt", "1GiB", "corrupt state", **built)

    assert done.returncode == 1
    assert "RepriseError: optimizer state has come back from host memory with other bits" in (
        done.stderr
    )


def test_without_the_block_of_host_memory_the_plan_recomputes(train: Any) -> None:
    plain, _ = train("gpt", "1GiB", REPRISE_DISABLE="1")

    report, errors = train("gpt", "1GiB", "refused")

    assert report["losses"] == plain["losses"]
    assert report["host"] == 0
    assert report["planned_steps"] > 0, errors
    assert errors.count("the system does not give") == 1
    assert report["measured_peak_bytes"] <= report["budget_bytes"]


def test_what_comes_back_wrong_is_found_before_it_reaches_a_gradient(train: Any) -> None:
    plain, _ = train("gpt", "1GiB", REPRISE_DISABLE="1")

    report, errors = train("gpt", "1GiB", "corrupt")

    assert report["losses"] == plain["losses"]
    assert report["failed_checks"] > 0
    assert "is removed and training continues without one" in errors
    assert not report["validated"]


def test_as_much_host_memory_as_is_free_may_be_asked_for(train: Any) -> None:
    report, errors = train("gpt", "auto")

    assert report["host"] > 1 << 20, errors
    assert report["validated"], errors


def test_without_a_host_budget_nothing_leaves(train: Any) -> None:
    report, errors = train("gpt", "0")

    assert report["host"] == 0
    assert report["planned_steps"] > 0
    assert "host" not in errors
