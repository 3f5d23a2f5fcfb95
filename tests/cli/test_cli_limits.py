# SPDX-License-Identifier: Apache-2.0
"""A server whose memory or threads run out: one sentence, or 503, and no abort."""

from __future__ import annotations

import http.client
import json
import resource
import select
import socket
import subprocess
from pathlib import Path

import pytest
from cli_program import Reprise
from serving import until

MIB = 1 << 20


def where(reprise: Reprise) -> Path:
    return Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"


def start(reprise: Reprise, log: Path, *limits: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["prlimit", *limits, "--", reprise.program, "serve", "--listen", "127.0.0.1:0"],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=subprocess.DEVNULL,
        stderr=log.open("wb"),
    )


def is_up_or_ended(reprise: Reprise, process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or where(reprise).exists()


@pytest.mark.parametrize("mebibytes", [200, 400, 600, 800])
def test_with_too_little_memory_it_starts_or_says_so_in_one_sentence(
    reprise: Reprise, tmp_path: Path, mebibytes: int
) -> None:
    log = tmp_path / "serve.log"
    process = start(reprise, log, f"--as={mebibytes * MIB}")
    until("it listens or has ended", 60, lambda: is_up_or_ended(reprise, process))
    if process.poll() is None:
        process.terminate()
        # Memory may be enough to start, and not for the threads that end it.
        if process.wait(timeout=60) == 0:
            return
    assert process.returncode == 1, log.read_text()
    said = [line for line in log.read_text().splitlines() if line.startswith("reprise")]
    assert len(said) == 1, log.read_text()
    assert "memory" in said[0]
    assert "terminate called" not in log.read_text()


def test_without_threads_it_says_so_in_one_sentence(
    reprise: Reprise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread whose stack cannot be had is one that cannot be started."""
    log = tmp_path / "serve.log"
    process = start(reprise, log, f"--stack={600 * MIB}", f"--as={1200 * MIB}")
    until("it listens or has ended", 60, lambda: is_up_or_ended(reprise, process))
    assert process.wait(timeout=60) == 1, log.read_text()
    said = [line for line in log.read_text().splitlines() if line.startswith("reprise")]
    assert len(said) == 1, log.read_text()
    assert "terminate called" not in log.read_text()


def resident(process: subprocess.Popen[bytes]) -> int:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_memory_of_bodies_that_were_never_sent_whole_is_given_back(
    reprise: Reprise, tmp_path: Path
) -> None:
    log = tmp_path / "serve.log"
    process = start(reprise, log, "--core=0")
    until("it listens", 60, where(reprise).exists)
    said = json.loads(where(reprise).read_text())
    token = Path(said["token_file"]).read_text().strip()
    host, port = said["listen"].split(":")
    before = resident(process)

    held = []
    # Smaller than what malloc gives back by itself (malloc_policy.h).
    each = 900 << 10
    for _ in range(100):
        one = http.client.HTTPConnection(host, int(port), timeout=30)
        one.putrequest("POST", "/reprise.v1.Query/ListRuns")
        one.putheader("Authorization", f"Bearer {token}")
        one.putheader("Content-Type", "application/json")
        one.putheader("Content-Length", str(each))
        one.endheaders(b" " * (each - 1))
        held.append(one)
    until("the bodies are held", 60, lambda: resident(process) - before > 64 * MIB)
    for one in held:
        one.close()

    until("they are given back", 60, lambda: resident(process) - before < 24 * MIB)
    process.terminate()
    assert process.wait(timeout=30) == 0, log.read_text()


def test_bodies_that_have_no_memory_end_no_server(reprise: Reprise, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    process = start(reprise, log, f"--as={16384 * MIB}")
    until("it listens", 60, where(reprise).exists)
    said = json.loads(where(reprise).read_text())
    token = Path(said["token_file"]).read_text().strip()
    host, port = said["listen"].split(":")
    # From now on there is room for a few bodies only, and for what threads have reserved.
    used = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
    limit = used * resource.getpagesize() + 12 * MIB
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, 16384 * MIB))

    held: list[http.client.HTTPConnection] = []
    refused: list[socket.socket] = []
    while not refused and len(held) < 150:
        one = http.client.HTTPConnection(host, int(port), timeout=30)
        one.putrequest("POST", "/reprise.v1.Query/ListRuns")
        one.putheader("Authorization", f"Bearer {token}")
        one.putheader("Content-Type", "application/json")
        one.putheader("Content-Length", str(4 * MIB))
        one.endheaders(b" " * MIB)
        held.append(one)
        refused, _, _ = select.select([each.sock for each in held], [], [], 0.1)
    assert refused, log.read_text()
    answer = next(each for each in held if each.sock is refused[0]).getresponse()
    assert answer.status == 503
    assert b"not enough memory" in answer.read()
    until("the log says so", 30, lambda: "out of memory" in log.read_text())
    for one in held:
        one.close()

    resource.prlimit(process.pid, resource.RLIMIT_AS, (16384 * MIB, 16384 * MIB))
    assert reprise("status").code == 0
    process.terminate()
    assert process.wait(timeout=30) == 0, log.read_text()
