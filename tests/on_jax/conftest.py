# SPDX-License-Identifier: Apache-2.0
"""A daemon for all tests, two devices on the CPU, and small models."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before JAX is loaded.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
from own_daemon import daemon  # noqa: E402, F401


@pytest.fixture(autouse=True)
def folder_of_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test finds what another one, or this machine's user, has kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "reprise" / "jax"
