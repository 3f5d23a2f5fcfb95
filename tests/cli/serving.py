# SPDX-License-Identifier: Apache-2.0
"""A real server for a test, and its browser API."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import Reprise


def until(what: str, seconds: float, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def ask(reprise: Reprise, method: str, **request: Any) -> Any:
    """A unary call as a browser makes it: JSON over HTTP."""
    where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"
    url = json.loads(where.read_text())["url"]
    call = urllib.request.Request(
        f"{url}/reprise.v1.{method}",
        data=json.dumps(request).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(call, timeout=30) as answer:
        return json.loads(answer.read())


@pytest.fixture
def server(reprise: Reprise, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`reprise serve` on a free port; the commands of the test find it by its socket."""
    log = (tmp_path / "serve.log").open("w")
    process = subprocess.Popen(
        [reprise.program, "serve", "--listen", "127.0.0.1:0"],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=log,
        stderr=log,
        text=True,
    )
    where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"

    def is_up() -> bool:
        assert process.poll() is None, (tmp_path / "serve.log").read_text()
        return where.exists()

    until("the server listens", 30, is_up)
    yield process
    process.terminate()
    assert process.wait(timeout=30) == 0, (tmp_path / "serve.log").read_text()
