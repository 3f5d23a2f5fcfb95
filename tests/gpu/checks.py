# SPDX-License-Identifier: Apache-2.0
"""The open checks: what only a GPU can tell. Started by tests/gpu/run.

Each check is a process of its own, because a process loads one CUPTI and its
attributes must be set before CUDA starts. It prints one JSON object; a check
that could not run says so and is counted, never left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cost_checks import (
    device_memory,
    loaded,
    memory_history,
    step_time,
    step_time_all_api,
    step_time_compiled,
)
from cupti_checks import (
    clock,
    cuda_graph,
    driver_memory,
    injection,
    no_api,
    other_profiler,
    recorded,
)
from job_checks import cpp_example, demo
from measuring import Context, Result
from reporting import write_report

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
