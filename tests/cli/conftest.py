# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the built command in a world of its own, and graphs to feed it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# For every import mode of pytest: the modules beside this file are found.
sys.path.insert(0, str(Path(__file__).parent))
from cli_program import ROOT, Graph, Reprise, small_graph
from serving import until


def _program() -> Path:
    named = os.environ.get("REPRISE_BIN")
    path = Path(named) if named else ROOT / "build" / "bin" / "reprise"
    if not os.access(path, os.X_OK):
        pytest.exit(f"{path}: not built; run scripts/build or set REPRISE_BIN", returncode=2)
    return path


@pytest.fixture
def reprise(tmp_path: Path) -> Reprise:
    home = tmp_path / "home"
    runtime = tmp_path / "run"
    work = tmp_path / "work"
    for folder in (home, runtime, work):
        folder.mkdir(mode=0o700)
    # Nothing of the machine's own daemon, colours or proxies gets in.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_STATE_HOME": str(home / "state"),
        "REPRISE_SOCKET": str(runtime / "agent.sock"),
        # A private daemon of a test does not stay for an hour.
        "REPRISE_LINGER": "2",
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm",
    }
    return Reprise(_program(), work, environment)


@pytest.fixture
def server(reprise: Reprise, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`reprise serve` on a free port; the commands of the test find it by its socket."""
    log = (tmp_path / "serve.log").open("w")
    process = subprocess.Popen(
        [reprise.program, "serve", "--listen", "127.0.0.1:0"],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=log,
        stderr=log,
        text=True,
    )
    where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"

    def is_up() -> bool:
        assert process.poll() is None, (tmp_path / "serve.log").read_text()
        return where.exists()

    until("the server listens", 30, is_up)
    yield process
    process.terminate()
    assert process.wait(timeout=30) == 0, (tmp_path / "serve.log").read_text()
    assert not where.exists(), "server.json goes with the server"


@pytest.fixture
def graph() -> Graph:
    return small_graph()


@pytest.fixture
def graph_file(reprise: Reprise, graph: Graph) -> Path:
    path = reprise.folder / "small.graph.json"
    path.write_text(json.dumps(graph))
    return path


@pytest.fixture
def damaged(reprise: Reprise, graph: Graph) -> Callable[[Callable[[Graph], None]], str]:
    """A file with the small graph after one change; returns its name."""

    def make(change: Callable[[Graph], None]) -> str:
        change(graph)
        (reprise.folder / "bad.json").write_text(json.dumps(graph))
        return "bad.json"

    return make
