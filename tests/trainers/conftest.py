# SPDX-License-Identifier: Apache-2.0
"""A daemon for all tests, and libraries that do not look for a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before the libraries are loaded.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
os.environ["PYTHONPATH"] = str(ROOT / "clients/python/src")  # of kernels
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from own_daemon import daemon  # noqa: E402, F401

torch.set_num_threads(1)  # whose partial sums do not depend on how many there are
