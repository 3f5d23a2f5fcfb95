# SPDX-License-Identifier: Apache-2.0
"""A daemon for all tests, and the backend of Keras: JAX, or what `KERAS_BACKEND` names."""

from __future__ import annotations

import os
import sys
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

from own_daemon import daemon  # noqa: E402, F401

# What is about one backend is collected on that one alone.
collect_ignore = [] if os.environ["KERAS_BACKEND"] == "torch" else ["test_torch.py"]
