# SPDX-License-Identifier: Apache-2.0
"""The agent alone, without a plan: windows around a small workload, its records in a file."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records
import torch
from runner import Figures, Here
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.agent import abi


class Work:
    """A transformer's step without an optimizer's momentum: some hundred kernels. `width` decides
    whether the device or the host's launches take the time."""

    def __init__(self, rehearsal: bool, width: int = 0, depth: int = 4) -> None:
        torch.manual_seed(0)
        width = width or (32 if rehearsal else 512)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.model = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(8, 32 if rehearsal else 128, width, device="cuda")

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()


class Ops(TorchDispatchMode):
    """Reports every op that torch dispatches, in whichever thread, as a capture does. `wait`: an op
    ends when its kernels have ended, so that they must lie inside it."""

    def __init__(self, library: abi.Library, wait: bool = False) -> None:
        super().__init__()
        self.library, self.wait = library, wait
        self.reports = True
        self.last = 0
        self.names: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.reports:
            return func(*args, **(kwargs or {}))
        text = str(func).encode()
        name = self.names.setdefault(
            str(func), int(self.library.quick.reprise_intern(text, len(text)))
        )
        self.last += 1
        op = self.last
        self.library.op_begin(op, name)
        result = func(*args, **(kwargs or {}))
        if self.wait:
            torch.cuda.synchronize()
        self.library.op_end(op)
        return result


def start(sink: Path | None) -> abi.Library:
    """The agent, its records going to a file, or nowhere."""
    if sink is not None:
        sink.unlink(missing_ok=True)  # of a row that was cut
    library = abi.load()
    config = abi.Config(
        abi=abi.ABI,
        ring_slots=1 << 20,
        sink_path=f"file:{sink}".encode() if sink else None,
    )
    library.blocking.reprise_start(ctypes.byref(config))
    return library


def window(library: abi.Library, ops: Ops, kinds: int, body: Callable[[], None]) -> int:
    """A window around `body`; its status."""
    status = int(library.quick.reprise_window_begin(kinds))
    with ops if kinds & abi.KIND_OPS else contextlib.nullcontext():
        body()
    library.quick.reprise_window_end()
    return status


def read_records(sink: Path, library: abi.Library) -> records.Records:
    """Ends the agent and reads all that it wrote."""
    torch.cuda.synchronize()
    library.blocking.reprise_flush(5000)
    library.blocking.reprise_stop()
    return records.read(sink)


def caps(library: abi.Library) -> dict[str, Any]:
    """What the agent says that it can do here, and what it lost."""
    found = abi.Caps()
    library.quick.reprise_capabilities(ctypes.byref(found))
    return {
        "cupti": found.cupti,
        "cupti_version": found.cupti_version,
        "driver_version": found.driver_version,
        "untimed": found.untimed,
        "cupti_dropped": found.cupti_dropped,
        "dropped": found.dropped,
        "device_bytes": found.cupti_device_bytes,
        "holder": found.holder.decode("utf-8", "replace"),
        "why": found.why.decode("utf-8", "replace"),
    }


def profiled(here: Here, body: Callable[[], Any]) -> Figures:
    """A session of torch's own profiler around `body`: what it saw of the device, and how many of
    those events lie between the session's begin and end. None on the fake device, whose CUPTI
    serves the agent alone."""
    if here.rehearsal:
        body()
        return {"not_run": "the fake CUPTI has no session of torch's"}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with (
        torch.profiler.profile(activities=activities) as found,
        torch.profiler.record_function("all of it"),
    ):
        body()
        torch.cuda.synchronize()
    events = found.events()
    outer = next(event.time_range for event in events if event.name == "all of it")
    device = [event.time_range for event in events if "CUDA" in str(event.device_type)]
    inside = sum(outer.start <= one.start and one.end <= outer.end for one in device)
    return {"events": len(events), "device": len(device), "device_inside": inside}
