# SPDX-License-Identifier: Apache-2.0
"""A daemon for all tests, and libraries that do not look for a network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Before the libraries are loaded.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
os.environ["PYTHONPATH"] = str(ROOT / "clients/python/src")  # of kernels
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)  # whose partial sums do not depend on how many there are
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
    child.wait(30)
