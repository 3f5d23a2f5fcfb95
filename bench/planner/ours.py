# SPDX-License-Identifier: Apache-2.0
"""Runs a program and says what it answered, how long it took and how much memory it had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """`json` is None where the program gave none; `error` then says why."""

    json: dict[str, Any] | None
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    error: str = ""


def run(
    command: list[str],
    limit_s: float,
    environment: dict[str, str] | None = None,
    read: Callable[[bytes], dict[str, Any]] = json.loads,
) -> Answer:
    """One object of JSON on stdout is expected. Killed at `limit_s`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env={**os.environ, **(environment or {})}
        )
        killed = False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if not killed and time.monotonic() - start > limit_s:
                process.send_signal(signal.SIGKILL)
                killed = True
            time.sleep(0.002)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        rss = usage.ru_maxrss * 1024
        cpu = usage.ru_utime + usage.ru_stime
        if killed:
            return Answer(None, seconds, cpu, rss, f"nothing within {limit_s:.0f} s")
        try:
            return Answer(read(out.read()), seconds, cpu, rss)
        except json.JSONDecodeError:
            lines = err.read().decode(errors="replace").strip().splitlines()
            return Answer(None, seconds, cpu, rss, lines[-1] if lines else "no answer")


def plan(reprise: str, graph: str, budget: str, *flags: str, limit_s: float = 600) -> Answer:
    return run([reprise, "plan", graph, "--budget", budget, "--json", *flags], limit_s)


def sweep(reprise: str, graph: str, limit_s: float = 600) -> Answer:
    """`json` has the last of each budget's points under the budget, as text."""

    def points(out: bytes) -> dict[str, Any]:
        found = [json.loads(line) for line in out.splitlines()]
        return {str(point["budget_bytes"]): point for point in found}

    return run([reprise, "sweep", graph, "--json"], limit_s, read=points)
