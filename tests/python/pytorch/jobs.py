# SPDX-License-Identifier: Apache-2.0
"""Small training jobs that are captured and run under plans without a daemon, hooks or a
session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "clients/python/src", ROOT / "examples"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from reprise.torch.capture.capture import Capture  # noqa: E402
from reprise.torch.capture.step_graph import CapturedGraph, build  # noqa: E402
from reprise.torch.internals.host import HostSaves  # noqa: E402
from reprise.torch.meter.meter import Meter  # noqa: E402
from reprise.torch.meter.state import (  # noqa: E402
    alive_tensors,
    known_names,
    open_meter,
    start_counting,
)
from reprise.torch.tape.compile_plan import compile_plan  # noqa: E402
from reprise.torch.tape.tape import Tape  # noqa: E402
from reprise.torch.tape.tape_run import Counts  # noqa: E402

Loss = Callable[[Any], Tensor]


@dataclass
class Job:
    """A model, its input, how its output becomes a loss, its optimizer."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Loss
    optimizer: torch.optim.Optimizer

    def begin(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Returns gradients and buffers."""
        found = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        found.update({n: b.clone() for n, b in self.model.named_buffers()})
        return found


def sum_of(out: Any) -> Tensor:
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return sum((o * o).mean() for o in outs)  # type: ignore[return-value]


def start_meter() -> Meter:
    meter = open_meter("cpu")
    start_counting(meter, torch.device("cpu"))
    return meter


def plain_step(job: Job, seed: int, step: bool = True) -> dict[str, Tensor]:
    job.begin(seed)
    job.loss(job.model(*job.inputs)).backward()
    state = job.state()
    if step:
        job.optimizer.step()
    return state


def captured(
    job: Job, meter: Meter, seed: int = 0, name: str = "job", host: HostSaves | None = None
) -> CapturedGraph:
    job.begin(seed)
    capture = Capture(job.model, meter, host=host)
    try:
        names = known_names(job.model, [job.optimizer])
        capture.begin(alive_tensors(torch.device("cpu")), names)
        with capture.region() as pin:
            out = job.model(*job.inputs)
            pin(out)
        loss = job.loss(out)
        del out
        loss.backward()
        capture.enter_optimizer()
        job.optimizer.step()
    except BaseException:
        capture.leave()
        raise
    step = capture.finish()
    return build(step, name=name, measured_peak_bytes=step.peak_bytes, measured_step_ns=0)


def planned_step(
    job: Job,
    graph: CapturedGraph,
    schedule: list[int],
    seed: int,
    meter: Meter | None = None,
    step: bool = True,
    tape: Tape | None = None,
) -> tuple[dict[str, Tensor], Counts, int]:
    tape = tape or Tape(compile_plan(graph, schedule))
    job.begin(seed)
    if meter is not None:
        meter.reset_peak()
    run = tape.begin()
    with tape.region():
        out = job.model(*job.inputs)
    loss = job.loss(out)
    del out
    loss.backward()
    peak = 0
    state = job.state() if meter is None else {}
    if step:
        job.optimizer.step()
    if meter is not None:
        peak = meter.peak()
    return state, run.counts, peak


def different(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    """Returns the names of tensors whose bits differ. The same NaN is no difference."""
    assert left.keys() == right.keys()
    return [n for n in left if not torch.equal(_bits(left[n]), _bits(right[n]))]


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
