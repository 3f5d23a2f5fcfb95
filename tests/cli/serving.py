# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a server does, and its browser API."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli_program import Reprise


def until(what: str, seconds: float, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def ask(reprise: Reprise, method: str, **request: Any) -> Any:
    """A unary call as a browser makes it: JSON over HTTP."""
    where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"
    said = json.loads(where.read_text())
    token = Path(said["token_file"]).read_text().strip()
    call = urllib.request.Request(
        f"{said['url']}/reprise.v1.{method}",
        data=json.dumps(request).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(call, timeout=30) as answer:
        return json.loads(answer.read())
