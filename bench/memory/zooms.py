#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Imports a large recording into a daemon of its own and measures what its page asks for.

CPU time is that of the daemon's threads (/proc/PID/task/*/schedstat), call by call, so other load
on the machine matters little; wall time is printed beside it. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Figures:
    """Of one kind of question: CPU ms, wall ms and bytes on the wire of each call."""

    cpu_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


class Daemon:
    """A reprised in a folder of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        socket = folder / "agent.sock"
        where = ["--data-dir", folder / "data", "--agent-socket", socket]
        self._process = subprocess.Popen(
            [program, "--listen", "127.0.0.1:0", *where],
            env={**os.environ, "REPRISE_SOCKET": str(socket)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._folder = folder
        self._url = ""
        while not self._url:
            assert self._process.poll() is None, "reprised ended"
            time.sleep(0.05)
            if (folder / "server.json").exists():
                self._url = json.loads((folder / "server.json").read_text())["url"]
        self._token = (folder / "data" / "token").read_text().strip()

    def cpu_ms(self) -> float:
        # By thread: /proc/PID/stat counts in ticks of 10 ms.
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6

    def memory_mib(self, what: str) -> float:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1]) / 1024
        return 0

    def post(self, path: str, body: Any, kind: str, size: int = -1) -> tuple[bytes, int]:
        """Returns the answer, and its size on the wire."""
        call = urllib.request.Request(
            f"{self._url}{path}",
            data=body,
            headers={
                "Content-Type": kind,
                "Authorization": f"Bearer {self._token}",
                "Accept-Encoding": "gzip",
                **({"Content-Length": str(size)} if size >= 0 else {}),
            },
        )
        with urllib.request.urlopen(call, timeout=1200) as answer:
            raw = answer.read()
            if answer.headers.get("Content-Encoding") == "gzip":
                import gzip

                return gzip.decompress(raw), len(raw)
            return raw, len(raw)

    def ask(self, method: str, **request: Any) -> tuple[Any, int]:
        body, sent = self.post(
            f"/reprise.v1.Query/{method}", json.dumps(request).encode(), "application/json"
        )
        return json.loads(body), sent

    def measure(self, figures: Figures, method: str, **request: Any) -> Any:
        cpu, wall = self.cpu_ms(), time.perf_counter()
        answer, sent = self.ask(method, **request)
        figures.wall_ms.append(1000 * (time.perf_counter() - wall))
        figures.cpu_ms.append(self.cpu_ms() - cpu)
        figures.sent.append(sent)
        return answer

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1) + 0.5)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--reprised", default=os.environ.get("REPRISED", "build/bin/reprised"))
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--peak", type=int, required=True, help="bytes, as the generator says")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="reprise-zooms-") as folder:
        daemon = Daemon(options.reprised, Path(folder))
        try:
            report(daemon, options)
        finally:
            daemon.stop()


def report(daemon: Daemon, options: argparse.Namespace) -> None:
    """Imports a recording, asks for random zooms and instants, and prints what they cost."""
    size = options.recording.stat().st_size
    cpu, wall = daemon.cpu_ms(), time.perf_counter()
    with options.recording.open("rb") as file:
        said, _ = daemon.post(
            f"/import?name={options.recording.name}", file, "application/octet-stream", size
        )
    run_id = json.loads(said.splitlines()[-1])["run"]["runId"]
    print(f"file of {size >> 20} MiB, load {os.getloadavg()[0]:.1f}")
    print(f"import: {daemon.cpu_ms() - cpu:.0f} ms CPU, {time.perf_counter() - wall:.0f} s, ")
    print(f"  daemon at most {daemon.memory_mib('VmHWM'):.0f} MiB resident")

    first, zoom, instant, found = Figures(), Figures(), Figures(), Figures()
    whole = daemon.measure(first, "GetTimeline", runId=run_id, widthPx=2000)["measuredBase"]
    print(f"first question: {first.cpu_ms[0]:.0f} ms CPU; then resident ", end="")
    print(f"{daemon.memory_mib('VmRSS'):.0f} MiB, at most {daemon.memory_mib('VmHWM'):.0f}")
    length, at = int(whole["stepNs"]), int(whole["peakAtNs"])
    assert int(whole["peakBytes"]) == options.peak, "the peak is lost"
    draw = random.Random(2)
    for i in range(options.calls):
        # Around the peak at every second zoom: it must be on the screen each time.
        span = max(2000, int(length * 0.5 ** draw.uniform(0, 20)))
        begin = at - span // 2 if i % 2 == 0 else draw.randint(0, length - 1)
        begin = max(0, min(begin, length - span))
        part = {"runId": run_id, "t0Ns": begin, "t1Ns": begin + span}
        curve = daemon.measure(zoom, "GetTimeline", widthPx=2000, **part)["measuredBase"]
        if begin <= at < begin + span:
            seen = max(int(value) for value in curve["maxBytes"])
            assert seen == options.peak, f"the peak is not seen in {span} ns"
        column = length // 2000
        begin = draw.randint(0, length - 1)
        part = {"runId": run_id, "atNs": begin, "untilNs": begin + column}
        daemon.measure(instant, "GetMemory", **part)
        daemon.measure(found, "GetMemory", search=f"block_{i % 97}.py:1", **part)
    top = Figures()
    for _ in range(5):
        at_peak = daemon.measure(top, "GetMemory", runId=run_id)
    print(f"alive at the peak: {at_peak['liveCount']} allocations")
    print("| question | CPU, median | CPU, p95 | wall, p95 | most on the wire |")
    print("|---|---|---|---|---|")
    for name, one in (
        ("timeline, any zoom", zoom),
        ("who is alive at an instant", instant),
        ("the same with a search", found),
        ("who is alive at the peak", top),
    ):
        median = sorted(one.cpu_ms)[len(one.cpu_ms) // 2]
        print(f"| {name} | {median:.0f} ms | {p95(one.cpu_ms):.0f} ms ", end="")
        print(f"| {p95(one.wall_ms):.0f} ms | {max(one.sent) / 1000:.0f} kB |")
    print(f"daemon at most {daemon.memory_mib('VmHWM'):.0f} MiB resident")


if __name__ == "__main__":
    main()
