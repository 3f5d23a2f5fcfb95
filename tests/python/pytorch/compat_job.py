# SPDX-License-Identifier: Apache-2.0
"""Trains three small networks under this torch, plainly and under a plan, and compares every bit.

    python tests/python/pytorch/compat_job.py      # what scripts/compat runs

A GPT and a ResNet train eagerly, under half the memory of a step, in the native engine: losses and
weights must be equal to those of the plain job to the last bit, and the measured peak must be what
was predicted. A GPT under torch.compile must be planned inside its compiled code and compute the
losses of the compiled job without a plan. Prints a line per network; exits with 1 if one fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import reprise
from reprise.torch.compiled import fast

Made = tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]
STEPS = 10
# What a loop holds from one step to the next beside what was captured, as its last loss.
NEAR = 1e-4


def gpt() -> Made:
    """Returns a GPT with attention, dropout and AdamW, and its batch."""
    from train_gpt import GPT

    model = GPT(2, 32, 2, 64, 0.1)
    x, y = torch.randint(0, 100, (4, 64)), torch.randint(0, 100, (256,))
    return model, torch.optim.AdamW(model.parameters()), x, y


def resnet() -> Made:
    """Returns a ResNet with batch norms and momentum, and its batch."""
    from train_resnet import ResNet

    model = ResNet(14)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), x, y


@dataclass
class Trained:
    """What a job computed, and the report of its plan."""

    losses: list[str]
    weights: list[Tensor]
    report: Any = None


def train(make: Callable[[], Made], planned: bool, compiled: bool) -> Trained:
    """Trains a network from the same seed."""
    torch.manual_seed(0)
    model, optimizer, x, y = make()
    called: Any = model
    if compiled:
        torch._dynamo.reset()
        called = torch.compile(model)
    if planned:
        called = reprise.auto(called, budget="0.5x", verify_every=4)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(called(x).reshape(len(y), -1), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    report = reprise.report(called) if planned else None
    return Trained(losses, [p.detach().clone() for p in model.parameters()], report)


def wrong(plain: Trained, found: Trained, compiled: bool) -> list[str]:
    """Returns what is not as it should be."""
    report = found.report
    pairs = zip(plain.weights, found.weights, strict=True)
    near = abs(report.measured_bytes - report.predicted_bytes) <= NEAR * report.predicted_bytes
    return [
        what
        for what, holds in {
            f"it is {report.stage} ({report.why})": report.planned_steps > 0,
            f"plans run in Python: {report.in_python}": not report.in_python,
            "losses differ": plain.losses == found.losses,
            "weights differ": all(torch.equal(one, other) for one, other in pairs),
            "a check failed": report.checks > 0 and report.failed_checks == 0,
            "the program left its plan": report.mismatched_steps == 0,
            "the budget was exceeded": report.over_budget_steps == 0,
            "it peaks elsewhere than predicted": near or compiled,
        }.items()
        if not holds
    ]


def main() -> int:
    """Trains the networks; returns the exit code."""
    torch.set_num_threads(1)
    failed = 0
    for name, make, compiled in [
        ("gpt", gpt, False),
        ("resnet", resnet, False),
        ("compiled gpt", gpt, True),
    ]:
        plain, found = train(make, False, compiled), train(make, True, compiled)
        report = found.report
        where = "in its compiled code" if compiled else "in the native engine"
        said = (
            f"torch {torch.__version__}, {name}: {report.planned_steps} of {STEPS} steps planned "
            f"{where}, {report.predicted_bytes:,} bytes predicted and {report.measured_bytes:,} "
            f"measured, {report.checks} checks, {report.failed_checks} failed"
        )
        problems = wrong(plain, found, compiled)
        failed += bool(problems)
        print(f"{said}: {'; '.join(problems) or 'losses and weights equal'}", flush=True)
    return 1 if failed or fast.library() is None else 0


if __name__ == "__main__":
    sys.exit(main())
