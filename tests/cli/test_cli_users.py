# SPDX-License-Identifier: Apache-2.0
"""Several users on one server: what each does with the command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Reprise
from serving import until

USERS = {"boss": "admin", "alice": "user", "bob": "user", "node": "send", "look": "viewer"}


@pytest.fixture
def users(reprise: Reprise, graph_file: Path) -> Iterator[None]:
    """A server with a run of alice and one of bob; NAME.token has the token of each."""
    lines = []
    for number, (name, role) in enumerate(USERS.items()):
        token = f"{number:032d}"
        lines.append(f"{name} {role} {token}\n")
        own = reprise.folder / f"{name}.token"
        own.write_text(token)
        own.chmod(0o600)
    tokens = reprise.folder / "tokens"
    tokens.write_text("".join(lines))
    tokens.chmod(0o600)
    with (reprise.folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [reprise.program, "serve", "--listen", "127.0.0.1:0", "--token-file", str(tokens)],
            env=reprise.environment,
            stdout=log,
            stderr=log,
            text=True,
        )
    try:
        until("the server answers", 30, lambda: reprise("status").code == 0)
        for name in ("alice", "bob"):
            sent = reprise("import", graph_file.name, "--token-file", f"{name}.token", "--json")
            assert sent.code == 0, sent.err
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def owners(reprise: Reprise, *arguments: str) -> list[str]:
    return [run["owner"] for run in reprise("runs", "--json", *arguments).json()["runs"]]


@pytest.mark.usefixtures("users")
def test_each_lists_shows_and_removes_the_own_runs(reprise: Reprise) -> None:
    alice, bob, look = (("--token-file", f"{name}.token") for name in ("alice", "bob", "look"))

    assert owners(reprise, *alice) == ["alice"]
    assert owners(reprise, *look) == ["bob", "alice"]
    assert owners(reprise, "--mine", *look) == []
    # The command of the server's own user is the admin's.
    assert owners(reprise) == ["bob", "alice"]
    assert "  bob  " in reprise("runs").out
    assert "  bob  " not in reprise("runs", *bob).out
    assert reprise("runs", "--limit", "1").err.endswith("the newest 1 of 2 runs; see --limit\n")

    run = reprise("runs", "--json", *alice).json()["runs"][0]["run_id"]
    there_is_none = f'there is no run "{run}"; `reprise show latest` shows the newest'
    assert reprise.fails(1, "show", run, *bob) == there_is_none
    assert reprise.fails(1, "rm", run, "--yes", *bob) == there_is_none
    assert "the role viewer" in reprise.fails(1, "rm", run, "--yes", *look)
    assert "the role send" in reprise.fails(1, "runs", "--token-file", "node.token")
    assert "1 run removed" in reprise("rm", "--keep-last", "0", "--yes", *bob).out
    assert owners(reprise) == ["alice"]
    assert reprise("rm", run, "--yes", *alice).code == 0
    assert reprise("runs", *alice).out == "there is no run yet\n"


@pytest.mark.usefixtures("users")
def test_status_tells_a_user_nothing_of_others(reprise: Reprise) -> None:
    said = reprise("status", "--token-file", "node.token").out

    assert "is running at" in said
    assert "store" not in said
    assert "runs" not in said
