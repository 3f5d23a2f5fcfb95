# SPDX-License-Identifier: Apache-2.0
"""The neutral Python client, over HTTP and gRPC, and a server with TLS: real handshakes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from authority import Authority
from test_cli_tls import Server, authority, secured

__all__ = ["authority", "secured"]

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from reprise import RepriseError
from reprise.plan import StepGraph, plan
graph = StepGraph("layers", static_bytes=1000)
x, h, dh = (graph.storage(100, name) for name in ("x", "h", "dh"))
graph.op("load", writes=[x], time_ns=1, kind="once")
graph.op("forward", [x], [h], time_ns=10)
graph.op("backward", [x, h], [dh], time_ns=20, phase="backward")
graph.require(dh)
try:
    print(plan(graph, "1x").peak_bytes)
except RepriseError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def ask() -> Callable[..., str]:
    """Plans a small graph at a server, in a process of its own; returns the peak or the error."""

    def run(server: Server, **files: Path) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "clients/python/src"),
                "REPRISE_SERVER": server.url,
                "REPRISE_TOKEN_FILE": str(server.token_file),
                **{f"REPRISE_{name}": str(path) for name, path in files.items()},
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_server_whose_authority_is_trusted_makes_plans(
    secured: Callable[..., Server], ask: Callable[..., str]
) -> None:
    server = secured()

    assert ask(server, CA=server.authority.certificate) == "1300"


def test_a_server_that_another_authority_has_signed_gets_no_graph(
    secured: Callable[..., Server], ask: Callable[..., str], tmp_path: Path
) -> None:
    server = secured()
    other = Authority(tmp_path / "other")

    for files in ({}, {"CA": other.certificate}):
        said = ask(server, **files)

        assert said.startswith("ServerUnavailable: the server at 127.0.0.1:"), said
        assert "does not answer" in said
        assert "certificate verify failed" in said.lower().replace("_", " ")


def test_a_server_that_asks_for_certificates_takes_those_of_its_authority(
    secured: Callable[..., Server], ask: Callable[..., str], authority: Authority
) -> None:
    server = secured("--client-ca", authority.certificate)
    certificate, key = authority.sign("client", None)

    assert ask(server, CA=authority.certificate).startswith("ServerUnavailable: ")
    assert ask(server, CA=authority.certificate, CERT=certificate, KEY=key) == "1300"


def test_a_certificate_that_cannot_be_read_is_named(
    secured: Callable[..., Server], ask: Callable[..., str], tmp_path: Path
) -> None:
    server = secured()

    said = ask(server, CA=tmp_path / "missing.pem")

    assert said.startswith("RepriseError: ")
    assert "missing.pem" in said
