# SPDX-License-Identifier: Apache-2.0
"""A job that prints what every step held, counted by heap_counter.c: run with it in LD_PRELOAD.

python heap_job.py VERIFY        # a line of JSON
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

WIDTH, BATCH, LAYERS, STEPS = 64, 8192, 6, 8


def main() -> None:
    heap: Any = ctypes.CDLL(None)
    for name in ("heap_live", "heap_peak"):
        getattr(heap, name).restype = ctypes.c_int64
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.GELU())]
    model = nn.Sequential(*layers)
    agent = LocalAgent(again=1.0)
    session = arm(model, agent, verify_every=3, verify=sys.argv[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(BATCH, WIDTH)
        gc.collect()
        # Beside its tensors a process holds what it has loaded.
        beside = heap.heap_live() - session.meter.live()
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
                "verify_peak": session.measured.verify_peak_bytes,
                "exact": session.meter.exact,
            }
        )
    )


if __name__ == "__main__":
    main()
