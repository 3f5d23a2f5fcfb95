# SPDX-License-Identifier: Apache-2.0
"""What the agent costs a job: loaded and idle, in windows of each kind, in bytes of the device."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
from collections.abc import Callable

import torch
from agent_alone import Ops, Work, caps, read_records, start, window
from runner import Block, Figures, Here, Row

from reprise.agent import abi

KINDS = {
    "kernels": abi.KIND_KERNELS,
    "kernels and ops": abi.KIND_KERNELS | abi.KIND_OPS,
    "kernels, ops, driver memory": abi.KIND_KERNELS | abi.KIND_OPS | abi.KIND_ALLOCS,
}
WINDOWS, STEPS = 10, 3


def interval(values: list[float]) -> Figures:
    """Median with a bootstrap interval of 95 %."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(500))
    return {
        "median": round(statistics.median(values), 4),
        "low": round(medians[12], 4),
        "high": round(medians[486], 4),
    }


def timed(step: Callable[[], None]) -> float:
    """Milliseconds of one step, waited for."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def idle(here: Here) -> None:
    """A step of about a millisecond before the agent is there, and with it and no window."""
    work = Work(here.rehearsal, depth=1)
    for _ in range(20):
        timed(work.step)
    free = torch.cuda.mem_get_info()[0]
    threads = len(os.listdir("/proc/self/task"))
    without = [timed(work.step) for _ in range(300)]
    library = start(None)
    with_agent = []
    for step in range(300):
        library.quick.reprise_step(step + 1)
        with_agent.append(timed(work.step))
    here.say(
        without_ms=interval(without),
        with_ms=interval(with_agent),
        device_bytes=free - torch.cuda.mem_get_info()[0],
        threads=len(os.listdir("/proc/self/task")) - threads,
    )


def windows(here: Here) -> None:
    """Windows of each kind, on and off in turn; what they take of the device and leave behind."""
    sink = here.scratch / "cost.records"
    library = start(sink)
    ops, work = Ops(library), Work(here.rehearsal)
    for _ in range(10):
        timed(work.step)
    before = [timed(work.step) for _ in range(20)]
    free = torch.cuda.mem_get_info()[0]
    step = 0
    for name, kinds in KINDS.items():
        on: list[float] = []
        off: list[float] = []
        taken = 0

        def traced(on: list[float] = on) -> None:
            nonlocal step, taken
            for _ in range(STEPS):
                step += 1
                library.quick.reprise_step(step)
                on.append(timed(work.step))
            taken = max(taken, free - torch.cuda.mem_get_info()[0])

        status = 0
        for _ in range(WINDOWS):
            # Under the same mode, which costs more than a window: what is asked is the window's.
            ops.reports = False
            with ops if kinds & abi.KIND_OPS else contextlib.nullcontext():
                off += [timed(work.step) for _ in range(STEPS)]
            ops.reports = True
            status |= window(library, ops, kinds, traced)
        here.say(**{
            name: {"status": status, "off_ms": interval(off), "on_ms": interval(on),
                   "cost": f"{statistics.median(on) / statistics.median(off) - 1:+.1%}",
                   "device_bytes": taken}
        })  # fmt: skip
    after = [timed(work.step) for _ in range(20)]
    here.say(
        left_behind=f"{statistics.median(after) / statistics.median(before) - 1:+.1%}",
        device_bytes_kept=free - torch.cuda.mem_get_info()[0],
        caps=caps(library),
    )
    found = read_records(sink, library)
    here.say(kernels=len(found.kernels), in_ops=found.attributed(), lost=found.lost)


COST = Block(
    "cost",
    "What does the agent cost, idle and in a window, in time and in bytes of the device?",
    25.0,
    (Row("idle", idle, 20), Row("windows", windows, 25)),
)
