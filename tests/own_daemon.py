# SPDX-License-Identifier: Apache-2.0
"""A daemon of its own for all tests of a framework, whose folder imports this fixture."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("d")
    program = os.environ.get("REPRISE_DAEMON", str(ROOT / "build/bin/reprised"))
    child = subprocess.Popen(
        [program, "--listen", "127.0.0.1:0", "--agent-socket", folder / "a", "--data-dir", folder],
        stdin=subprocess.DEVNULL,
    )
    os.environ["REPRISE_SOCKET"] = str(folder / "a")
    while not (folder / "server.json").is_file():
        assert child.poll() is None, "reprised ended at once"
        time.sleep(0.01)
    yield
    child.terminate()
    assert child.wait(timeout=60) == 0
