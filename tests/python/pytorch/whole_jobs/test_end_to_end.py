# SPDX-License-Identifier: Apache-2.0
"""The whole loop with the real agent, daemon and planner: two example networks, several budgets."""

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
from torch.nn import functional as F
sys.path.insert(0, sys.argv[1])
which, budget, steps = sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
if which == "resnet":
    from train_resnet import ResNet
    model, x, y = ResNet(14), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    from train_gpt import GPT
    model = GPT(3, 64, 4, 64, 0.1)
    x, y = torch.randint(0, 100, (8, 64)), torch.randint(0, 100, (512,))
    optimizer = torch.optim.AdamW(model.parameters())
import reprise
model = reprise.auto(model, budget=budget, verify_every=3)
losses = []
for _ in range(steps):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).reshape(len(y), -1), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
report = reprise.report(model)
print(json.dumps({**dataclasses.asdict(report), "losses": losses, "equal": report.values_equal}))
"""


@pytest.fixture
def train(
    python: Callable[..., Any], home: Path, root: Path, agent_library: Path, daemon_binary: Path
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Trains in a separate process; the client starts the private daemon."""

    built = {"REPRISE_AGENT": str(agent_library), "REPRISE_DAEMON": str(daemon_binary)}

    def run(which: str, budget: str, steps: int = 12, **environment: str) -> Any:
        done = python(
            "-c", PROGRAM, str(root / "examples"), which, budget, str(steps),
            **(built | environment),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


@pytest.mark.mostly_long(1)
@pytest.mark.parametrize("which", ["gpt", "resnet"])
def test_a_budget_of_half_the_memory_holds_and_changes_no_bit(train: Any, which: str) -> None:
    plain, _ = train(which, "0.5x", REPRISE_DISABLE="1")

    report, errors = train(which, "0.5x")

    assert report["stage"] == "training under a plan", errors
    assert report["losses"] == plain["losses"]
    assert report["planned_steps"] >= 6
    assert report["mismatched_steps"] == 0
    assert report["equal"]
    assert 0 < report["measured_peak_bytes"] <= report["budget_bytes"]
    assert abs(report["measured_peak_bytes"] / report["predicted_peak_bytes"] - 1) <= 0.02
    assert report["budget_bytes"] < report["base_peak_bytes"]


@pytest.mark.long
@pytest.mark.parametrize("which", ["resnet", "gpt"])
@pytest.mark.parametrize("budget", ["0.3x", "0.05x"])
def test_a_smaller_budget_holds_or_is_refused_by_name(train: Any, which: str, budget: str) -> None:
    report, errors = train(which, budget, steps=10)

    if report["planned_steps"]:
        assert report["measured_peak_bytes"] <= report["budget_bytes"]
        assert report["equal"]
    else:
        assert "Nothing fits in" in errors or "This executor cannot keep to" in errors
        assert "needs at least" in errors


def test_without_a_daemon_it_trains_on_and_says_so(train: Any, tmp_path: Path) -> None:
    nothing = tmp_path / "reprised"
    nothing.write_text("#!/bin/sh\nexit 1\n")
    nothing.chmod(0o755)
    plain, _ = train("gpt", "0.5x", steps=4, REPRISE_DISABLE="1")

    report, errors = train("gpt", "0.5x", steps=8, REPRISE_DAEMON=str(nothing))

    assert report["losses"][:4] == plain["losses"]
    assert report["planned_steps"] == 0
    assert errors.count("without a plan") == 1
