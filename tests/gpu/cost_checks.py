# SPDX-License-Identifier: Apache-2.0
"""What recording costs a job: time of a step, threads, bytes of the device; and torch's own history
of memory beside it."""

from __future__ import annotations

import os
import time

import workload
from measuring import Context, Result, interval, ratio, read_records, window

from reprise import abi

KINDS = {
    "kernels": abi.KIND_KERNELS,
    "kernels and ops": abi.KIND_KERNELS | abi.KIND_OPS,
    "kernels, ops, driver memory": abi.KIND_KERNELS | abi.KIND_OPS | abi.KIND_ALLOCS,
}
WINDOWS, STEPS = 30, 5


def step_time(context: Context, compiled: bool = False) -> Result:
    """Cost of each set of kinds, windows on and off in turn in one process."""
    library, ops = context.start()
    # Hooks that mark ops would break the compiled graph into pieces.
    work = context.make(None if compiled else ops, compiled)
    for _ in range(10):
        work.timed_step()
    first_off = [work.timed_step() for _ in range(20)]
    result: Result = {"workload": work.name, "off_before_ms": interval(first_off)}
    step = 0
    for name, kinds in KINDS.items():
        on: list[float] = []
        off: list[float] = []
        status = 0
        for _ in range(WINDOWS):
            off += [work.timed_step() for _ in range(STEPS)]

            def traced(on: list[float] = on) -> None:
                nonlocal step
                for _ in range(STEPS):
                    step += 1
                    library.quick.reprise_step(step)
                    on.append(work.timed_step())

            status = window(library, ops, kinds, traced)
            library.quick.reprise_step(step)
        result[name] = {
            "status": status,
            "off_ms": interval(off),
            "on_ms": interval(on),
            "cost": ratio(on, off),
        }
    last_off = [work.timed_step() for _ in range(20)]
    result["off_after_ms"] = interval(last_off)
    result["left_behind"] = ratio(last_off, first_off)
    result["caps"] = workload.caps(library)
    found = read_records(context, library, work)
    result["kernels"] = len(found.kernels)
    result["in_ops"] = found.attributed()
    result["lost"] = found.lost
    return result


def step_time_compiled(context: Context) -> Result:
    """The same under torch.compile."""
    return step_time(context, compiled=True)


def step_time_all_api(context: Context) -> Result:
    """The same with every API call recorded instead of those that launch."""
    return step_time(context)


def loaded(context: Context) -> Result:
    """The agent loaded and no window: against its absence, in turn."""
    off_library, _ = context.start(record=False)
    work = context.make(None)
    for _ in range(10):
        work.timed_step()
    free = work.free_bytes()
    threads = len(os.listdir("/proc/self/task"))
    with_agent: list[float] = []
    without: list[float] = []
    for step in range(300):
        without.append(work.timed_step())
        off_library.quick.reprise_step(step)
        with_agent.append(work.timed_step())
    return {
        "without_ms": interval(without),
        "with_ms": interval(with_agent),
        "cost": ratio(with_agent, without),
        "device_bytes": free - work.free_bytes(),
        "threads": len(os.listdir("/proc/self/task")) - threads,
    }


def device_memory(context: Context) -> Result:
    """Bytes of the device around a window."""
    library, ops = context.start()
    work = context.make(ops)
    for _ in range(3):
        work.timed_step()
    before = work.free_bytes()
    during: list[int] = []
    reported: list[int] = []

    def body() -> None:
        for _ in range(5):
            work.timed_step()
        during.append(work.free_bytes())
        reported.append(int(workload.caps(library)["device_bytes"]))

    window(library, ops, abi.KIND_KERNELS | abi.KIND_OPS, body)
    library.quick.reprise_step(1)
    return {
        "taken": before - during[0],
        "reported_at_most": reported[0],
        "kept_after": before - work.free_bytes(),
    }


def memory_history(context: Context) -> Result:
    """_record_memory_history: cost per allocation, time of a snapshot."""
    if context.fake:
        return {"skipped": "torch's allocator history needs a GPU"}
    import torch

    def cost(n: int) -> float:
        begin = time.perf_counter()
        for _ in range(n):
            torch.empty(512, device="cuda")
        return (time.perf_counter() - begin) / n * 1e9

    cost(1000)
    without = cost(20000)
    torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")
    with_history = cost(60000)
    begin = time.perf_counter()
    torch.cuda.memory._snapshot()
    seconds = time.perf_counter() - begin
    torch.cuda.memory._record_memory_history(enabled=None)
    return {
        "ns_without": without,
        "ns_with": with_history,
        "snapshot_s": seconds,
        "ns_afterwards": cost(20000),
    }
