# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job, and says how they ended.

    started(name, way, steps, folder, limit_s)    # -> ("", or what went wrong; standard error)

Plain jobs and those of `reprise.auto` are forked from this process, which has imported torch once;
`reprise run` starts torchrun, as users do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from job import train
from jobs import JOBS

__all__ = ["started"]

HERE = Path(__file__).parent


def started(name: str, way: str, steps: int, folder: Path, limit_s: float) -> tuple[str, str]:
    """Trains a job in all its ranks. Returns what went wrong ("", "hang" or "crash") and what was
    written to standard error."""
    log = folder / "errors"
    run = _under_run if way == "run" else _forked
    with log.open("wb") as errors:
        wrong = run(name, way, steps, folder, limit_s, errors.fileno())
    return wrong, log.read_text(errors="replace")


def _under_run(name: str, way: str, steps: int, folder: Path, limit_s: float, errors: int) -> str:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [
        os.environ["REPRISE_COMMAND"], "run", "--budget", JOBS[name].budget, "--",
        *torchrun, "--nproc-per-node", str(JOBS[name].ranks),
        str(HERE / "job.py"), name, way, str(steps), str(folder),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True)
    try:
        return "" if process.wait(limit_s) == 0 else "crash"
    except subprocess.TimeoutExpired:
        return "hang"
    finally:
        # Also ranks that outlive torchrun.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _forked(name: str, way: str, steps: int, folder: Path, limit_s: float, errors: int) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    count = JOBS[name].ranks
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = os.fork()  # ranks of one parent are one run
    if launcher == 0:
        os.setpgid(0, 0)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        ranks = []
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                os.environ.update(common, RANK=str(rank), LOCAL_RANK=str(rank))
                _train(name, way, steps, folder)
            ranks.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        os._exit(any(codes))
    return _ended(launcher, limit_s)


def _train(name: str, way: str, steps: int, folder: Path) -> None:
    try:
        train(name, way, steps, folder)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def _ended(launcher: int, limit_s: float) -> str:
    until = time.monotonic() + limit_s
    wrong = "hang"
    while time.monotonic() < until:
        pid, status = os.waitpid(launcher, os.WNOHANG)
        if pid:
            wrong = "" if status == 0 else "crash"
            break
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher, signal.SIGKILL)
    if wrong == "hang":
        os.waitpid(launcher, 0)
    return wrong
