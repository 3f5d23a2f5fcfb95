# SPDX-License-Identifier: Apache-2.0
"""One way of training a network on the GPU, alone in this process.

    row = attempt("resnet", "sqrt", blocks=198, batch=1280, steps=5)
    row = attempt("resnet", "9663676416", blocks=198, batch=1280, steps=5)    # Reprise, in bytes
    card()                                           # which GPU, which torch, which driver

Every way trains UNPLANNED + SETTLING + `steps` steps from the same seeds, so that its losses and
weights can be compared with plain's to the bit; the last `steps` are the series that is measured.
A row says whose bytes a figure is, each the highest of the series, reset before every step:

    peak_bytes          requested: what tensors ask for. What a budget and a plan's peak are of
    static_bytes        of it, alive between steps: parameters, gradients, optimizer state, batch
    allocated_bytes     in the allocator's blocks, rounded up
    reserved_bytes      in segments that the allocator has taken from the driver. It keeps what the
                        first steps took, so a plan does not lower this
    fresh_reserved_bytes  the same in one more step that begins with no unused segments; null if
                        memory ran out in that one
    driver_bytes        of the whole device, as the driver says after the series: this process with
                        its CUDA context and libraries, and every other process
    driver_before_bytes the same before the first tensor

`step_ns` is the median time between two CUDA events around a step. The host waits for the device
before and after the series and not within it. `first_steps_s` is the wall time of the first
UNPLANNED steps, in every way; for Reprise `planned_after_s` is the wall time from the beginning of
the first step to the end of the first planned one: with capture, planning and a check of values.
"""

from __future__ import annotations

import ctypes
import hashlib
import statistics
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import torch
from networks import build
from ways import out_of_memory

import reprise
from reprise.torch.internals.guard import is_oom
from reprise.torch.training import armed

__all__ = ["SETTLING", "UNPLANNED", "attempt", "card", "digest", "ran_out"]

KINDS = ("requested", "allocated", "reserved")
# Four plain steps, a captured one, and the first that may be planned, which is checked. Tables say
# "first 6", too.
UNPLANNED = 6
# Steps between that one and the series.
SETTLING = 2


def attempt(name: str, way: str, blocks: int, batch: int, steps: int) -> dict[str, Any]:
    """Returns the row of one way. Running out of memory is a row, too: `out_of_memory` is true,
    and `error` says in which step and how much was asked for."""
    job = _Job(name, way, blocks, batch, steps)
    try:
        return job.measured()
    except Exception as error:
        if not ran_out(error):
            raise
        return {"error": out_of_memory(str(error), job.step), "out_of_memory": True}


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Returns the SHA-256 of all bytes of some tensors, in this order. Takes no device memory."""
    sha = hashlib.sha256()
    for tensor in tensors:
        here = tensor.detach().cpu().contiguous()
        sha.update(ctypes.string_at(here.data_ptr(), here.nbytes) if here.nbytes else b"")
    return sha.hexdigest()


def ran_out(error: Exception) -> bool:
    """Returns whether an error says that memory ran out: the allocator's, the driver's or that of
    a library, which has its own words."""
    says = ("out of memory", "ALLOC_FAILED")
    return is_oom(error) or any(words in str(error) for words in says)


def card() -> dict[str, Any]:
    """Returns which GPU this is, and which torch and driver; `error` if torch sees none."""
    if not torch.cuda.is_available():
        return {"error": f"torch {torch.__version__} sees no CUDA device"}
    device = torch.cuda.current_device()
    return {
        "card": torch.cuda.get_device_name(device),
        "card_bytes": torch.cuda.get_device_properties(device).total_memory,
        "torch": torch.__version__,
        "driver": _driver(),
        "tf32_convolutions": torch.backends.cudnn.allow_tf32,
    }


def _driver() -> str:
    """Returns the version of the NVIDIA driver; "not known" if nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not known"
    return (done.stdout.split() or ["not known"])[0]


class _Job:
    """One network that is trained in one way."""

    def __init__(self, name: str, way: str, blocks: int, batch: int, steps: int) -> None:
        self.name, self.way, self.blocks, self.batch, self.steps = name, way, blocks, batch, steps
        self.planned = way.isdigit()
        self.step = 0  # the one under way or the last one; 0 before the first

    def measured(self) -> dict[str, Any]:
        """Trains, and returns the row."""
        self.device = torch.device("cuda", torch.cuda.current_device())
        found: dict[str, Any] = {"driver_before_bytes": self._of_driver()}
        torch.manual_seed(0)
        self.network = build(self.name, self.blocks, self.batch, self.device)
        torch.manual_seed(1)
        self.call = self.network.way(self.way)
        if self.planned:
            reprise.auto(self.network.model, budget=int(self.way), verify_every=1000)
        total = UNPLANNED + SETTLING + self.steps
        self.losses = torch.zeros(total + 1, device=self.device)
        found |= self._first_steps()
        already = self._planned_steps()
        found |= self._series()
        found["driver_bytes"] = self._of_driver()
        if self.planned:
            found |= self._reported(already)
        found["losses"] = [loss.hex() for loss in self.losses[:total].tolist()]
        model = self.network.model
        found["weights"] = digest(model.parameters())
        found["buffers"] = digest(model.buffers())
        found["fresh_reserved_bytes"] = self._fresh()
        reprise.remove(self.network.model)
        return found

    def _train(self) -> None:
        """Trains one step. Does not wait for it."""
        self.step += 1
        network = self.network
        network.optimizer.zero_grad()
        loss = network.loss(self.call(network.x))
        loss.backward()
        network.optimizer.step()
        self.losses[self.step - 1].copy_(loss.detach())

    def _first_steps(self) -> dict[str, Any]:
        """Trains until a plan should be there and has settled."""
        found: dict[str, Any] = {}
        torch.cuda.synchronize()
        began = time.perf_counter()
        for number in range(1, UNPLANNED + SETTLING + 1):
            self._train()
            if number == UNPLANNED:
                torch.cuda.synchronize()
                found["first_steps_s"] = time.perf_counter() - began
            if "first_planned_step" not in found and self._has_plan():
                torch.cuda.synchronize()
                found["first_planned_step"] = number
                found["planned_after_s"] = time.perf_counter() - began
        return found

    def _series(self) -> dict[str, Any]:
        """Trains and measures `steps` steps."""
        between = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(self.steps)
        ]
        peaks, static = [], 0
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for begin, end in between:
            static = self._counter("requested_bytes", "current")
            torch.cuda.reset_peak_memory_stats(self.device)
            begin.record()
            self._train()
            end.record()
            peaks.append([self._counter(f"{kind}_bytes", "peak") for kind in KINDS])
        torch.cuda.synchronize()
        wall_ns = (time.perf_counter_ns() - began) // self.steps
        times = [int(begin.elapsed_time(end) * 1e6) for begin, end in between]
        requested, allocated, reserved = (max(kind) for kind in zip(*peaks, strict=True))
        return {
            "peak_bytes": requested,
            "static_bytes": static,
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "step_ns": int(statistics.median(times)),
            "steps_ns": times,
            "wall_step_ns": wall_ns,
        }

    def _reported(self, already: int) -> dict[str, Any]:
        """Returns what Reprise announced and reports. `already`: planned steps before the
        series."""
        report = reprise.report(self.network.model)
        graph = getattr(armed.current(self.network.model), "graph", None)
        return {
            "budget_bytes": int(self.way),
            "validated": report.validated,
            "planned_steps": report.planned_steps,
            "planned_in_series": report.planned_steps - already,
            "over_budget_steps": report.over_budget_steps,
            "checks": report.checks,
            "failed_checks": report.failed_checks,
            "predicted_peak_bytes": report.predicted_peak_bytes,
            "unplanned_peak_bytes": report.unplanned_peak_bytes,
            # Both by Reprise's own clock: a plain step of this process, and a planned one.
            "base_step_ns": report.base_step_ns,
            "predicted_step_ns": report.predicted_step_ns,
            "reported_step_ns": report.measured_step_ns,
            "in_python": report.in_python,
            "ops": 0 if graph is None else len(graph.step.ops),
            "sentence": report.sentence,
        }

    def _fresh(self) -> int | None:
        """Trains one more step, which begins with no unused segments; returns its reserved peak.
        None: memory ran out, as another layout of segments may take more."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            self._train()
            torch.cuda.synchronize()
        except Exception as error:
            if not ran_out(error):
                raise
            return None
        return self._counter("reserved_bytes", "peak")

    def _has_plan(self) -> bool:
        """Returns whether a plan is installed. Does not wait for the device."""
        return bool(getattr(armed.current(self.network.model), "handles", ()))

    def _planned_steps(self) -> int:
        """Returns how many steps ran under a plan. Waits for the device."""
        return reprise.report(self.network.model).planned_steps if self.planned else 0

    def _counter(self, name: str, which: str) -> int:
        """Returns a counter of torch's allocator. Does not wait for the device."""
        return int(torch.cuda.memory_stats_as_nested_dict(self.device)[name]["all"][which])

    def _of_driver(self) -> int:
        """Returns the bytes in use on the whole device, as the driver says."""
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free
