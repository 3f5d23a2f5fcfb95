# SPDX-License-Identifier: Apache-2.0
"""Who reaches a user's server: the user's own commands, and no other user of the machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_program import Reprise
from serving import ask, until

NOBODY = 65534


def announced(reprise: Reprise) -> dict[str, str]:
    """What the server of a test says of itself beside its socket."""
    said: dict[str, str] = json.loads(
        (Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json").read_text()
    )
    return said


def token_of(reprise: Reprise) -> str:
    return Path(announced(reprise)["token_file"]).read_text().strip()


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a program as another user, in a folder of that user's own."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a program as another user")
    home = Path(subprocess.check_output(["mktemp", "-d", "/tmp/rnXXXXXX"], text=True).strip())
    os.chown(home, NOBODY, NOBODY)

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in words],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=home,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "XDG_RUNTIME_DIR": str(home),
                "XDG_STATE_HOME": str(home),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    yield run
    shutil.rmtree(home)


@pytest.mark.usefixtures("server")
def test_another_user_can_neither_read_runs_nor_send_plans(
    reprise: Reprise,
    graph_file: Path,
    as_nobody: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ours = reprise("plan", str(graph_file), "--budget", "0.9x")
    assert ours.code == 0, ours.err
    address = announced(reprise)["listen"]
    public = Path("/tmp") / f"reprise-public-{os.getpid()}"
    shutil.copy(reprise.program, public)
    public.chmod(0o755)
    try:
        for words in (
            ["status"],
            ["show", "latest"],
            ["window", "latest", "--steps", "1"],
            ["export", "latest", "--out", "x.json"],
        ):
            theirs = as_nobody(public, "--server", address, *words)
            assert theirs.returncode != 0, words
            assert "asks for its token" in theirs.stderr, (words, theirs)
            assert "pid" not in theirs.stdout
    finally:
        public.unlink()
    for path, said in (("reprise.v1.Query/ListRuns", "{}"), ("reprise.v1.Planner/Sweep", "{}")):
        over_http = as_nobody(
            "curl", "-s", "-w", "%{http_code}", "-d", said,
            "-H", "Content-Type: application/json", f"http://{address}/{path}",
        )  # fmt: skip
        assert over_http.stdout.endswith("401"), over_http
    data = Path(announced(reprise)["data_dir"])
    for file in (
        Path(announced(reprise)["token_file"]),
        Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json",
        data / "token",
        data / "reprise.db",
        data / "reprise.db-wal",
        data / "spool.db",
    ):
        assert file.stat().st_mode & 0o077 == 0, file
        assert as_nobody("cat", file).returncode != 0


@pytest.mark.usefixtures("server")
def test_the_command_knows_the_token_of_the_server_that_runs_here(reprise: Reprise) -> None:
    listen = announced(reprise)["listen"]
    for named in ([], ["--server", listen], ["--server", f"http://{listen}/"]):
        seen = reprise.on_terminal("status", *named)
        assert f"http://{listen}/?token={token_of(reprise)}" in seen


@pytest.mark.usefixtures("server")
def test_a_link_that_goes_to_a_file_holds_no_token(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("import", str(graph_file))
    assert result.code == 0, result.err
    assert f"{announced(reprise)['url']}/runs/" in result.out
    status = reprise("status")
    assert "its token is shown on a terminal only" in status.out
    for one in (result, status):
        assert token_of(reprise) not in one.out + one.err


@pytest.mark.usefixtures("server")
def test_a_wrong_token_is_named_as_such(reprise: Reprise, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0123456789abcdef\n")
    wrong.chmod(0o600)
    for result in (
        reprise("status", "--token-file", str(wrong)),
        reprise("status", REPRISE_TOKEN_FILE=str(wrong)),
    ):
        assert result.code != 0
        assert "does not take this token" in result.err
        assert len(result.err.splitlines()) == 1


@pytest.mark.usefixtures("server")
def test_a_token_file_that_is_not_there_is_named(reprise: Reprise) -> None:
    result = reprise("status", "--token-file", "/nowhere/token")
    assert result.code != 0
    assert result.err.startswith("reprise: /nowhere/token: ")


@pytest.mark.usefixtures("server")
def test_a_browser_call_with_the_token_is_answered(reprise: Reprise) -> None:
    assert ask(reprise, "Query/GetStatus")["listen"] == announced(reprise)["listen"]


def test_a_server_without_descriptors_left_lives_and_answers_again(
    reprise: Reprise, tmp_path: Path
) -> None:
    """More connections than descriptors, before the first request."""
    log = (tmp_path / "serve.log").open("w")
    process = subprocess.Popen(
        ["prlimit", "--nofile=128", "--", reprise.program, "serve", "--listen", "127.0.0.1:0"],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=log,
        stderr=log,
    )
    where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"
    until("the server listens", 30, where.exists)
    host, port = announced(reprise)["listen"].split(":")
    open_sockets = []
    for _ in range(200):
        open_sockets.append(socket.create_connection((host, int(port)), timeout=30))
    until(
        "clients are refused",
        30,
        lambda: "descriptors are in use" in (tmp_path / "serve.log").read_text(),
    )
    # The first request of all: what serves it needs descriptors, too.
    open_sockets[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = open_sockets[0].recv(100)
    assert answer.startswith(b"HTTP/1.1 200"), (tmp_path / "serve.log").read_text()
    for one in open_sockets:
        one.close()
    assert reprise("status").code == 0
    process.terminate()
    assert process.wait(timeout=30) == 0, (tmp_path / "serve.log").read_text()


@pytest.mark.parametrize("removed", ["socket", "database"])
def test_a_server_whose_files_were_removed_is_not_ready(
    reprise: Reprise, server: subprocess.Popen[str], removed: str
) -> None:
    said = announced(reprise)
    path = Path(said["agent_socket"])
    if removed == "database":
        path = Path(said["data_dir"]) / "reprise.db"
    url = f"{said['url']}/readyz"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.status == 200

    path.unlink()

    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token_of(reprise)}"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=30)
    assert refused.value.code == 503
    assert f"{path} was removed" in refused.value.read().decode()
    # Who does not know the token is not told where things are.
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=30)
    assert refused.value.read() == b"not ready\n"


def test_files_that_others_could_read_are_closed(reprise: Reprise, tmp_path: Path) -> None:
    """As a release left them that did not ask: a database of mode 0644."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "reprise.db").touch(mode=0o644)
    log = (tmp_path / "serve.log").open("w")
    process = subprocess.Popen(
        [reprise.program, "serve", "--listen", "127.0.0.1:0", "--data-dir", data],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=log,
        stderr=log,
    )
    where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"
    until("the server listens", 30, where.exists)

    for file in data.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    process.terminate()
    assert process.wait(timeout=30) == 0, (tmp_path / "serve.log").read_text()


@pytest.mark.parametrize("option", ["--data-dir", "--agent-socket"])
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_folder_that_others_share_stays_open_to_them(
    reprise: Reprise, tmp_path: Path, option: str, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "train.py").touch()
    shared.chmod(mode)

    refused = reprise(
        "serve",
        *("--listen", "127.0.0.1:0"),
        *(option, str(shared / "agent.sock" if option == "--agent-socket" else shared)),
    )

    assert refused.code != 0
    assert f"{shared}: others may write to this folder" in refused.err
    assert stat.S_IMODE(shared.stat().st_mode) == mode
    assert [file.name for file in shared.iterdir()] == ["train.py"]
