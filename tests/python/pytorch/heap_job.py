# SPDX-License-Identifier: Apache-2.0
"""A job that prints what every step held, counted by heap_counter.c: run with it in LD_PRELOAD.

python heap_job.py VERIFY               # a line of JSON
python heap_job.py VERIFY compiled      # the same job under torch.compile
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from typing import Any

import torch
from arming import arm
from local_agent import LocalAgent
from torch import nn

from reprise.torch.joint.job import CompiledJob
from reprise.torch.joint.reporting import Reporting

WIDTH, BATCH, LAYERS, STEPS = 64, 8192, 6, 8


def counted() -> Any:
    """Returns the counts of heap_counter.c."""
    heap: Any = ctypes.CDLL(None)
    for name in ("heap_live", "heap_peak"):
        getattr(heap, name).restype = ctypes.c_int64
    return heap


def network() -> nn.Sequential:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.GELU())]
    return nn.Sequential(*layers)


def compiled() -> None:
    """Trains under torch.compile."""
    heap, model = counted(), network()
    told: list[int] = []
    unplanned: list[bool] = []

    class Listens(Reporting):
        beside = 0

        def compared(self, peak: int, took_ns: int) -> None:
            self.beside = peak

        def ended(
            self, peak: int, plan: Any, quiet: bool, budget: int, predicted: int, recomputed: int
        ) -> None:
            told.append(max(peak, self.beside))
            unplanned.append(bool(self.beside) or not quiet or plan is None)
            self.beside = 0

    called: nn.Module = torch.compile(model, backend="aot_eager")
    job = CompiledJob(called, "0.8x", verify_every=3, verify=sys.argv[1])
    job.told = Listens(job.job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(BATCH, WIDTH)
        gc.collect()
        beside = heap.heap_live() - (job.memory.meter.live() if job.memory.meter is not None else 0)
        heap.heap_reset_peak()
        called(x).square().mean().backward()
        optimizer.step()
        steps.append(heap.heap_peak() - beside)
        del x
    found = {"steps": steps, "told": told, "unplanned": unplanned, "checks": job.checks}
    print(
        json.dumps(
            {**found, "budget": job.joint.budget_bytes, "exact": job.memory.meter is not None}
        )
    )


def main() -> None:
    heap, model = counted(), network()
    agent = LocalAgent(again=1.0)
    session = arm(model, agent, verify_every=3, verify=sys.argv[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(BATCH, WIDTH)
        gc.collect()
        # Beside its tensors a process holds what it has loaded.
        beside = heap.heap_live() - session.job.meter.live()
        heap.heap_reset_peak()
        model(x).square().mean().backward()
        optimizer.step()
        steps.append(heap.heap_peak() - beside)
        del x
    plan = session.plan
    assert plan is not None
    print(
        json.dumps(
            {
                "steps": steps,
                "planned": [step["flags"] & 1 for step in agent.steps],
                "checked": [check["step"] for check in agent.checks],
                "flags": [check["flags"] for check in agent.checks],
                "budget": plan.budget_bytes,
                "verify_peak": session.job.measured.verify_peak_bytes,
                "exact": session.job.meter.exact,
            }
        )
    )


if __name__ == "__main__":
    compiled() if "compiled" in sys.argv else main()
