# SPDX-License-Identifier: Apache-2.0
"""What CUPTI tells: ids, clocks, memory of the driver, graphs; and who else may use it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import records
import workload
from measuring import Context, Result, ratio, read_records, window

from reprise import abi


def no_api(context: Context) -> Result:
    """Does external correlation come without API kinds?"""
    library, ops = context.start()
    work = context.make(ops)
    work.step()
    window(library, ops, abi.KIND_KERNELS | abi.KIND_OPS, work.step)
    found = read_records(context, library, work)
    return {"kernels": len(found.kernels), "links": len(found.link), "calls": len(found.api)}


def driver_memory(context: Context) -> Result:
    """What MEMORY2 says of torch's segments; the environment chooses the allocator."""
    library, ops = context.start()
    work = context.make(ops)

    def body() -> None:
        if context.fake:
            work.step()
            return
        import torch

        block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        del block
        torch.cuda.empty_cache()
        work.synchronize()

    window(library, ops, abi.KIND_KERNELS | abi.KIND_ALLOCS, body)
    found = read_records(context, library, work)
    return {
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default"),
        "driver_records": found.driver,
        "driver_bytes": found.driver_bytes,
        "pool_records": found.pool,
    }


def other_profiler(context: Context) -> Result:
    """torch.profiler before, beside and after a window."""
    library, ops = context.start()
    work = context.make(ops)
    work.step()
    if context.fake:
        return {"skipped": "torch.profiler needs a GPU"}
    from torch.profiler import ProfilerActivity, profile

    def profiled(body: Callable[[], None]) -> int:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            body()
            work.synchronize()
        return sum(1 for event in found.events() if "CUDA" in str(event.device_type))

    result: Result = {"events_before": profiled(work.step)}
    result["window_after"] = window(library, ops, abi.KIND_KERNELS, work.step)

    def beside() -> None:
        result["window_beside"] = window(library, ops, abi.KIND_KERNELS, work.step)
        result["caps_beside"] = workload.caps(library)

    result["events_with_window_beside"] = profiled(beside)

    def started_inside() -> None:
        library.quick.reprise_pause()
        result["events_inside_pause"] = profiled(work.step)
        library.quick.reprise_resume()
        work.step()

    result["window_with_pause"] = window(library, ops, abi.KIND_KERNELS, started_inside)
    result["events_after"] = profiled(work.step)
    found = read_records(context, library, work)
    result["kernels"] = len(found.kernels)
    return result


def cuda_graph(context: Context) -> Result:
    """Replays: ids, counts, and the op around them."""
    library, ops = context.start()
    work = context.make(ops)
    if context.fake:
        return {"skipped": "CUDA graphs need a GPU"}
    import torch

    for _ in range(3):
        work.step()
    graph = torch.cuda.CUDAGraph()
    model, batch = work.model, work.batch  # type: ignore[attr-defined]
    with torch.no_grad(), torch.cuda.graph(graph):
        model(batch)
    on: list[float] = []
    off: list[float] = []

    def replay() -> None:
        for _ in range(20):
            op = ops.begin(0)
            begin = time.perf_counter()
            graph.replay()
            work.synchronize()
            on.append(time.perf_counter() - begin)
            ops.end(op)

    for _ in range(20):
        begin = time.perf_counter()
        graph.replay()
        work.synchronize()
        off.append(time.perf_counter() - begin)
    window(library, ops, abi.KIND_KERNELS | abi.KIND_OPS, replay)
    found = read_records(context, library, work)
    inside = [kernel for kernel in found.kernels if kernel.graph != 0]
    return {
        "kernels": len(found.kernels),
        "in_graph": len(inside),
        "graphs": len({kernel.graph for kernel in inside}),
        "launches": len({kernel.correlation for kernel in inside}),
        "in_ops": found.attributed(),
        "cost": ratio(on, off),
    }


def clock(context: Context) -> Result:
    """Do kernels lie inside the ops that launched and awaited them?"""
    library, ops = context.start()
    work = context.make(None)
    work.step()
    held: list[int] = []

    def body() -> None:
        for _ in range(20):
            op = ops.begin(0)
            if context.fake:
                cupti = work.cupti  # type: ignore[attr-defined]
                cupti.FakeCuptiLaunch(b"inside", 100)
                time.sleep(1e-5)
            else:
                work.step()
            work.synchronize()
            ops.end(op)
            held.append(op)

    window(library, ops, abi.KIND_KERNELS | abi.KIND_OPS, body)
    found = read_records(context, library, work)
    inside = worst = 0
    for kernel in found.kernels:
        op = found.link.get(kernel.correlation, 0)
        if op not in found.begin or op not in found.end:
            continue
        early = found.begin[op][1] - kernel.start
        late = kernel.start + kernel.dur - found.end[op]
        worst = max(worst, early, late)
        inside += early <= 0 and late <= 0
    untimed = sum(1 for kernel in found.kernels if kernel.flags & records.UNTIMED)
    return {
        "kernels": len(found.kernels),
        "inside": inside,
        "worst_ns_outside": worst,
        "untimed": untimed,
        "monotonic": found.clocks.get(0, 0),
        "in_ops": found.attributed(),
    }


def injection(context: Context) -> Result:
    """CUDA_INJECTION64_PATH: is it called, and which libcupti is in the process?"""
    code = (
        "import os, ctypes\n"
        "try:\n import torch\n torch.ones(1, device='cuda')\nexcept ImportError: pass\n"
        "except Exception as e: print('torch:', e)\n"
        "agent = ctypes.CDLL(os.environ['REPRISE_AGENT'])\n"
        "agent.reprise_step(ctypes.c_uint64(1)); agent.reprise_stop()\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(sorted({m for m in maps if 'libcupti' in m}))\n"
    )
    sink = context.out / "injection.records"
    sink.unlink(missing_ok=True)
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "CUDA_INJECTION64_PATH": os.environ["REPRISE_AGENT"],
            "REPRISE_SINK": f"file:{sink}",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # A session begins at the first step only if the driver called us.
    return {"exit": run.returncode, "called": sink.exists(), "says": run.stdout[-800:]}


def recorded(context: Context) -> Result:
    """A few raw buffers, for the tests on machines without a GPU."""
    folder = context.out / "buffers"
    library, ops = context.start()
    work = context.make(ops)
    work.step()
    window(library, ops, 7, work.step)
    work.synchronize()
    library.blocking.reprise_flush(5000)
    library.blocking.reprise_stop()
    files = sorted(folder.glob("*.rrc"))
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}
