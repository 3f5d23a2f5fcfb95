# SPDX-License-Identifier: Apache-2.0
"""A graph per test, a daemon for all of them, and what a step of a graph gives and takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before TensorFlow is loaded: workspaces of oneDNN depend on the machine.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/src"))
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
from own_daemon import daemon  # noqa: E402, F401

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as made:
        yield made


@dataclass(frozen=True)
class Ran:
    """A traced step: what was fetched, and bytes above variables and inputs."""

    values: list[Any]
    peak: int


@pytest.fixture
def run() -> Callable[..., Ran]:
    """Runs the third step of what is fetched, traced, in a session of its own."""
    from reprise.tensorflow.trace import peak_bytes, run_traced

    def step(fetches: list[Any], feed: Any = None, grappler: bool = True) -> Ran:
        config = v1.ConfigProto(device_count={"CPU": 2})
        config.graph_options.rewrite_options.disable_meta_optimizer = not grappler
        with v1.Session(graph=fetches[0].graph, config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(fetches, feed)
            values, metadata = run_traced(session, fetches, feed)
        return Ran(values, peak_bytes(metadata))

    return step
