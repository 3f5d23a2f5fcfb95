# SPDX-License-Identifier: Apache-2.0
"""Compiled jobs of many kinds that print what every step held, counted by heap_counter.c: run with
it in LD_PRELOAD.

python heap_compiled_job.py SHARE KIND...           # a line of JSON per kind
python heap_compiled_job.py SHARE ddp RANK PORT     # one of two ranks
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from heap_job import counted
from torch import Tensor, distributed, nn, optim
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from zoo import GPT

import reprise
from reprise.torch.joint.job import CompiledJob
from reprise.torch.meter.state import alive_bytes
from reprise.torch.training.armed import current

STEPS = 9
WIDTH, ROWS = 192, 1536


class Case(NamedTuple):
    """A model, its batch, its loss, and how it is trained."""

    model: nn.Module
    batch: Tensor
    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[Any, Tensor], Tensor] = lambda y, x: y.square().mean()
    backend: str = "aot_eager"
    parts: int = 1  # micro-batches
    bf16: bool = False


class Gates(nn.Module):
    """Runs gated cells over time, like an LSTM; the graph unrolls them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(2 * WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros_like(x)
        for _ in range(4):
            gate, new = self.cell(torch.cat([x, hidden], 1)).chunk(2, 1)
            hidden = gate.sigmoid() * new.tanh() + (1 - gate.sigmoid()) * hidden
        return hidden


class Residual(nn.Module):
    """Convolutions with batch norm, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 3, padding=1)
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.GELU())
            for _ in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for part in self.parts:
            x = x + part(x)
        return x.mean((2, 3))


def mlp(*more: nn.Module, layers: int = 5) -> nn.Sequential:
    made = [
        m for _ in range(layers) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.GELU(), *more)
    ]
    return nn.Sequential(*made)


def frozen() -> nn.Module:
    model = mlp()
    for parameter in model[:6].parameters():
        parameter.requires_grad_(False)
    return model


def entropy(y: Any, x: Tensor) -> Tensor:
    return cross_entropy(y.flatten(0, 1), x.flatten())


def rows() -> Tensor:
    return torch.randn(ROWS, WIDTH)


def words() -> Tensor:
    return torch.randint(0, 64, (16, 64))


KINDS: dict[str, Callable[[], Case]] = {
    "momentum": lambda: Case(mlp(), rows(), partial(optim.SGD, lr=0.01, momentum=0.9)),
    "gpt": lambda: Case(GPT(3).train(), words(), partial(optim.Adam, lr=1e-3), entropy),
    "batch norm": lambda: Case(Residual(), torch.randn(8, 3, 24, 24), optim.AdamW),
    "gates": lambda: Case(Gates(), rows(), optim.Adam),
    "dropout": lambda: Case(mlp(nn.Dropout(0.1)), rows(), partial(optim.AdamW, fused=True)),
    "accumulates": lambda: Case(mlp(), rows(), optim.Adam, parts=2),
    "frozen": lambda: Case(frozen(), rows(), optim.Adam),
    "bf16": lambda: Case(mlp(), rows(), optim.AdamW, bf16=True),
    "inductor": lambda: Case(mlp(layers=3), rows(), optim.Adam, backend="inductor"),
    "ddp": lambda: Case(GPT(3).train(), words(), optim.Adam, entropy),
}


def trained(kind: str, share: str) -> dict[str, Any]:
    """Trains, and returns what was measured."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    case = KINDS[kind]()
    model = case.model
    if kind == "ddp":
        model = DistributedDataParallel(model)
    buckets = sum(p.nbytes for p in model.parameters()) if kind == "ddp" else 0
    called: nn.Module = torch.compile(model, backend=case.backend)
    reprise.auto(called, share, verify_every=50)
    job = current(called)
    assert isinstance(job, CompiledJob)
    steps: list[dict[str, Any]] = []
    step = job.job.record.step

    def listens(*args: Any, **more: Any) -> None:
        steps.append({"told": more["peak_bytes"], "planned": more["plan"] is not None})
        step(*args, **more)

    job.job.record.step = listens  # type: ignore[method-assign]
    optimizer, heap = case.optimizer(model.parameters()), counted()
    held, begins = [], []
    device = torch.device("cpu")
    for _ in range(STEPS):
        optimizer.zero_grad()
        gc.collect()
        # Beside its tensors a process holds what it has loaded.
        begins.append(alive_bytes(device) + buckets)
        beside = heap.heap_live() - begins[-1]
        heap.heap_reset_peak()
        for part in case.batch.chunk(case.parts):
            with torch.autocast("cpu", torch.bfloat16, enabled=case.bf16):
                loss = case.loss(called(part), part)
            loss.backward()
        optimizer.step()
        del loss
        held.append(heap.heap_peak() - beside)
    for told, peak in zip(steps, held, strict=False):
        told["held"] = peak
    report = reprise.report(called)
    reprise.remove(called)
    return {
        "kind": kind,
        "steps": steps,
        "begins": begins,
        "budget": report.budget_bytes,
        "predicted": report.predicted_peak_bytes,
        "measured": report.measured_peak_bytes,
        "validated": report.validated,
        "why": report.why,
        "exact": job.memory.meter is not None,
    }


def main() -> None:
    share, kinds = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    if kinds[0] == "ddp":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=kinds[2], WORLD_SIZE="2")
        distributed.init_process_group("gloo", rank=int(kinds[1]), world_size=2)
    for kind in kinds[:1] if kinds[0] == "ddp" else kinds:
        print(json.dumps(trained(kind, share)), flush=True)
    if kinds[0] == "ddp":
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
