# SPDX-License-Identifier: Apache-2.0
"""Jobs under a plan, through a daemon: in PyTorch, and in CUDA C++."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import stored_graph
from measuring import Context, Result

# Daemons' folders: not a part of the report.
SCRATCH = Path(os.environ.get("REPRISE_GPU_SCRATCH") or tempfile.gettempdir())


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
