# SPDX-License-Identifier: Apache-2.0
"""One way of training a network on the CPU, in this process, beside a plain twin of it.

row = measure("gpt", "sqrt", blocks=12, batch=4, steps=4)
row = measure("gpt", "47841280", blocks=12, batch=4, steps=4)    # Reprise, within so many bytes
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from networks import Network, build

import reprise
from reprise.base.units import format_bytes
from reprise.torch.meter.state import alive_bytes, open_meter

__all__ = ["measure"]

# Reprise trains so many steps before its plan is there.
UNPLANNED = 6


def _step(network: Network, call: Callable[..., Any]) -> tuple[torch.Tensor, int]:
    """Trains one step; returns the loss and the CPU time."""
    began = time.process_time_ns()
    network.optimizer.zero_grad()
    loss = network.loss(call(network.x))
    loss.backward()
    network.optimizer.step()
    return loss, time.process_time_ns() - began


def measure(name: str, way: str, blocks: int, batch: int, steps: int) -> dict[str, Any]:
    """Returns the row of one way: peaks without what the twin holds, CPU times of both, losses."""
    meter = open_meter("cpu")
    meter.start(alive_bytes(torch.device("cpu")))
    # The twin is there from the beginning, or a plan would have to make room for it later.
    twin = build(name, blocks, batch)
    _step(twin, twin.model)
    beside = meter.live()
    torch.manual_seed(0)
    network = build(name, blocks, batch)
    torch.manual_seed(1)
    planned = way.isdigit()
    call = network.way(way)
    if planned:
        reprise.auto(network.model, budget=int(way) + beside, verify_every=1000)
    peaks, losses, static = [], [], 0
    for _ in range(steps + UNPLANNED * planned):
        static = meter.live() - beside  # with the gradients of the step before
        meter.reset_peak()
        losses.append(_step(network, call)[0].item().hex())
        peaks.append(meter.peak() - beside)
    found: dict[str, Any] = {
        "peak_bytes": max(peaks[-max(3, steps // 3) :]),
        "static_bytes": static,
        "losses": losses,
        "exact": meter.exact,
    }
    both = [(_step(twin, twin.model)[1], _step(network, call)[1]) for _ in range(2 * steps)]
    found["plain_ns"], found["step_ns"] = (min(times) for times in zip(*both, strict=True))
    if planned:
        report = reprise.report(network.model)
        with_twin = f"(with the {format_bytes(beside)} that its plain twin holds)"
        found |= {
            "validated": report.validated,
            "planned_steps": report.planned_steps,
            "predicted_peak_bytes": report.predicted_peak_bytes - beside,
            "predicted_ratio": report.predicted_step_ns / max(1, report.base_step_ns),
            "sentence": f"{report.sentence} {with_twin}",
        }
    reprise.remove(network.model)
    return found
