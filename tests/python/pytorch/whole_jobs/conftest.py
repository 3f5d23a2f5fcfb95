# SPDX-License-Identifier: Apache-2.0
"""Private folders with one daemon for all tests of a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def one_daemon(agent_library: Path, daemon_binary: Path) -> Iterator[None]:
    """A private daemon for the whole file."""
    folder = Path(tempfile.mkdtemp(prefix="rp", dir="/tmp"))
    (folder / "run").mkdir(mode=0o700)
    before = dict(os.environ)
    os.environ.update(
        XDG_RUNTIME_DIR=str(folder / "run"),
        XDG_STATE_HOME=str(folder / "state"),
        REPRISE_AGENT=str(agent_library),
        REPRISE_DAEMON=str(daemon_binary),
    )
    for name in ("REPRISE_SOCKET", "REPRISE_RUN_ID", "REPRISE_BUDGET", "REPRISE_DISABLE"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)
