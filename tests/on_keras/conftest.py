# SPDX-License-Identifier: Apache-2.0
"""A daemon for all tests, and the backend of Keras: JAX, or what `KERAS_BACKEND` names."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Before Keras and its backend are loaded.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["JAX_PLATFORMS"] = "cpu"
# Workspaces of oneDNN depend on the machine.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

# What is about one backend is collected on that one alone.
collect_ignore = [] if os.environ["KERAS_BACKEND"] == "torch" else ["test_torch.py"]


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
