# SPDX-License-Identifier: Apache-2.0
"""The open checks: what only a GPU can tell. Started by tests/gpu/run.

Each check is a process of its own, because a process loads one CUPTI and its
attributes must be set before CUDA starts. It prints one JSON object; a check
that could not run says so and is counted, never left out.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records
import stored_graph
import workload

from reprise import abi

Result = dict[str, Any]
KINDS = {
    "kernels": abi.KIND_KERNELS,
    "kernels and ops": abi.KIND_KERNELS | abi.KIND_OPS,
    "kernels, ops, driver memory": abi.KIND_KERNELS | abi.KIND_OPS | abi.KIND_ALLOCS,
}
WINDOWS, STEPS = 30, 5
# Daemons' folders: not a part of the report.
SCRATCH = Path(os.environ.get("REPRISE_GPU_SCRATCH") or tempfile.gettempdir())


class Context:
    def __init__(self, out: Path, fake: bool, name: str) -> None:
        self.out, self.fake = out, fake
        self.sink = out / f"{name}.records"
        self.sink.unlink(missing_ok=True)
        self.make = workload.choose(fake)

    def start(self, record: bool = True) -> tuple[abi.Library, workload.Ops]:
        library = workload.start(str(self.sink) if record else None)
        return library, workload.Ops(library)


def interval(values: list[float]) -> Result:
    """Median with a bootstrap interval of 95 %."""
    source = random.Random(0)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(1000))
    ordered = sorted(values)
    return {
        "median": statistics.median(values),
        "low": medians[25],
        "high": medians[974],
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "n": len(values),
    }


def ratio(on: list[float], off: list[float]) -> float:
    return statistics.median(on) / statistics.median(off) - 1


def window(library: abi.Library, ops: workload.Ops, kinds: int, body: Callable[[], None]) -> int:
    """A window around `body`; its status."""
    status = int(library.quick.reprise_window_begin(kinds))
    ops.on = bool(kinds & abi.KIND_OPS)
    body()
    ops.on = False
    library.quick.reprise_window_end()
    return status


def read_records(context: Context, library: abi.Library, work: workload.Workload) -> Any:
    work.synchronize()
    library.blocking.reprise_flush(5000)
    library.blocking.reprise_stop()
    return records.read(context.sink)


# ---- The checks ----


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


def no_api(context: Context) -> Result:
    """Does external correlation come without API kinds?"""
    library, ops = context.start()
    work = context.make(ops)
    work.step()
    window(library, ops, abi.KIND_KERNELS | abi.KIND_OPS, work.step)
    found = read_records(context, library, work)
    return {"kernels": len(found.kernels), "links": len(found.link), "calls": len(found.api)}


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


def demo(context: Context) -> Result:
    """A job under a budget, through a daemon: bytes, times, gradients, kernels as op times."""
    if "REPRISE_DAEMON" not in os.environ:
        return {"skipped": "no reprised here: make one with tests/gpu/bundle"}
    state = SCRATCH / "demo"
    (state / "run").mkdir(parents=True, exist_ok=True)
    (state / "run").chmod(0o700)
    os.environ |= {"XDG_STATE_HOME": str(state), "XDG_RUNTIME_DIR": str(state / "run")}
    import torch

    import reprise

    torch.manual_seed(0)
    device, width, batch_size = ("cpu", 64, 256) if context.fake else ("cuda", 2048, 8192)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in "x" * 16]
    model = torch.nn.Sequential(*layers).to(device)
    model = reprise.auto(model, budget="0.6x")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(batch_size, width, device=device)
    peaks: list[int] = []
    times: list[float] = []
    for _ in range(30):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated())
        times.append(time.perf_counter() - begin)
    report = reprise.report(model)
    graph = stored_graph.find(state)
    return {
        "stage": report.stage,
        "peak_before": peaks[1] if peaks else report.base_peak_bytes,
        "peak_after": peaks[-1] if peaks else report.measured_peak_bytes,
        "ms_before": times[1] * 1e3,
        "ms_after": statistics.median(times[-5:]) * 1e3,
        "report": str(report),
        # "kernels" where CUPTI told what ops cost; the sum of all ops is the measured step.
        "timing": graph.timing,
        "ops_ms": sum(sum(v) for k, v in graph.times.items() if k != stored_graph.REST) / 1e6,
        "step_ms": sum(map(sum, graph.times.values())) / 1e6,
        "slowest": dict(sorted(graph.sums().items(), key=lambda kv: -kv[1])[:8]),
    }


def cpp_example(context: Context) -> Result:
    """The CUDA C++ loop, planned through the same daemon."""
    program, daemon = os.environ.get("REPRISE_TRAIN_MLP"), os.environ.get("REPRISE_DAEMON")
    if program is None or daemon is None:
        return {"skipped": "needs nvcc for the example and a reprised"}
    folder = SCRATCH / "cpp"
    folder.mkdir(exist_ok=True)
    socket = folder / "agent.sock"
    environment = {**os.environ, "REPRISE_SOCKET": str(socket)}
    server = subprocess.Popen(
        [
            daemon,
            "--agent-socket",
            str(socket),
            "--data-dir",
            str(folder),
            "--listen",
            "127.0.0.1:0",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 20
        while not socket.exists() and time.monotonic() < until:
            time.sleep(0.05)
        run = subprocess.run(
            [program, "--budget", "0.5x", "--layers", "48", "--width", "512", "--batch", "8192"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        server.terminate()
        server.wait(30)
    return {
        "exit": run.returncode,
        "planned": ", planned" in run.stdout,
        "equal": "equal bit for bit" in run.stdout,
        "says": run.stdout[-1500:],
    }


# Check, what its environment needs besides; the most telling ones first.
CHECKS: list[tuple[Callable[[Context], Result], dict[str, str]]] = [
    (clock, {}),
    (recorded, {"REPRISE_RECORD_CUPTI": "{out}/buffers"}),
    (step_time, {}),
    (loaded, {}),
    (device_memory, {}),
    (demo, {}),
    (cpp_example, {}),
    (cuda_graph, {}),
    (other_profiler, {}),
    (no_api, {"REPRISE_CUPTI_OPTIONS": "no_api"}),
    (injection, {}),
    (driver_memory, {}),
    (driver_memory, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    (driver_memory, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    (memory_history, {}),
    (step_time_all_api, {"REPRISE_CUPTI_OPTIONS": "all_api"}),
    (step_time_compiled, {}),
]


def run_all(out: Path, deadline: float, only: set[str], fake: bool) -> int:
    (out / "buffers").mkdir(exist_ok=True)
    results: list[Result] = []
    for index, (check, extra) in enumerate(CHECKS):
        name = check.__name__
        if only and name not in only:
            continue
        left = deadline - time.time()
        entry: Result = {
            "check": name,
            "about": (check.__doc__ or "").strip(),
            "environment": extra,
        }
        if left < 15:
            entry["not_run"] = "out of time"
        else:
            environment = {key: value.format(out=out) for key, value in extra.items()}
            entry |= run_one(name, index, out, min(left - 5, 150), environment, fake)
        results.append(entry)
        word = next((w for w in ("failed", "not_run", "skipped") if w in entry), "ran")
        print(f"{name}: {word} {entry.get(word, '')}", file=sys.stderr, flush=True)
        write_report(out, results, fake)  # so far: nothing is lost if we are ended
    for path in out.glob("*.records"):
        path.unlink()
    failed = sum("failed" in entry for entry in results)
    print(f"{out}/report.md: {len(results)} checks, {failed} failed", file=sys.stderr)
    return 1 if failed else 0


def run_one(
    name: str, index: int, out: Path, seconds: float, environment: dict[str, str], fake: bool
) -> Result:
    command = [sys.executable, __file__, "--check", str(index), "--out", str(out)]
    begin = time.time()
    # Into files, and in a process group of its own: what a check leaves running (compilers of
    # torch.compile, a daemon) must not keep this one waiting.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        run = subprocess.Popen(
            command + (["--fake"] if fake else []),
            env={**os.environ, **environment},
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        stdout.seek(0)
        stderr.seek(0)
        said, errors = stdout.read().strip().splitlines(), stderr.read()
    if run.returncode == -signal.SIGKILL and time.time() - begin >= seconds:
        return {"failed": f"did not end within {seconds:.0f} s", "stderr": errors[-2000:]}
    if run.returncode != 0 or not said:
        last = errors.strip().splitlines()[-1:] or ["no word"]
        return {"failed": f"exit {run.returncode}: {last[0]}", "stderr": errors[-2000:]}
    result: Result = json.loads(said[-1])
    skipped = {"skipped": result.pop("skipped")} if "skipped" in result else {}
    return {**skipped, "result": result, "seconds": round(time.time() - begin, 1)}


@functools.cache
def machine(fake: bool) -> Result:
    """Asked once, after the first check: the clock runs."""
    facts: Result = {
        "cpu": platform.processor() or platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    if fake:
        return {**facts, "gpu": "none: fake CUPTI"}
    code = "import torch; print(torch.__version__, torch.version.cuda)"
    try:
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False
        )
        facts["torch"] = run.stdout.strip()
        query = "--query-gpu=name,driver_version,memory.total"
        run = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
        facts["gpu"] = run.stdout.strip()
    except OSError:
        facts["gpu"] = "nvidia-smi is not here"
    except subprocess.TimeoutExpired as late:
        facts["gpu"] = f"{late.cmd[0]} gave no answer in {late.timeout:.0f} s"
    return facts


def write_report(out: Path, results: list[Result], fake: bool) -> None:
    facts = machine(fake)
    (out / "report.json").write_text(json.dumps({"machine": facts, "checks": results}, indent=1))
    lines = ["# What the GPU says", "", *(f"- {key}: {value}" for key, value in facts.items()), ""]
    for entry in results:
        lines += [f"## {entry['check']}", "", entry["about"], ""]
        if entry["environment"]:
            lines += [f"with `{entry['environment']}`", ""]
        for word in ("failed", "not_run", "skipped"):
            if word in entry:
                lines += [f"**{word.replace('_', ' ')}**: {entry[word]}", ""]
        if entry.get("result"):
            lines += ["```json", json.dumps(entry["result"], indent=1), "```", ""]
    (out / "report.md").write_text("\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=time.time() + 520)
    parser.add_argument("--only", default="")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--check", type=int)
    arguments = parser.parse_args()
    if arguments.check is None:
        only = {name for name in arguments.only.split(",") if name}
        unknown = only - {check.__name__ for check, _ in CHECKS}
        if unknown:
            print(f"--only: there is no check {', '.join(sorted(unknown))}", file=sys.stderr)
            return 2
        return run_all(arguments.out, arguments.deadline, only, arguments.fake)
    if arguments.fake:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    check, _ = CHECKS[arguments.check]
    context = Context(arguments.out, arguments.fake, f"{check.__name__}-{arguments.check}")
    print(json.dumps(check(context)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
