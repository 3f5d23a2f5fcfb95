# SPDX-License-Identifier: Apache-2.0
"""A daemon for all tests, two devices on the CPU, and small models."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Before JAX is loaded.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402


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


@pytest.fixture(autouse=True)
def folder_of_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test finds what another one, or this machine's user, has kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "reprise" / "jax"
