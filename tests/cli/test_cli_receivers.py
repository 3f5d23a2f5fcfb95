# SPDX-License-Identifier: Apache-2.0
"""No secret leaves before its receiver is known: what another user of the machine can listen on,
write or use up."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_program import ROOT, Reprise
from serving import ask, until

NOBODY = 65534
# A job that opens a session, and whose exit code is whether its records were taken.
FLUSH = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.reprise_start(None)
library.reprise_step(ctypes.c_uint64(1))
sys.exit(library.reprise_flush(ctypes.c_uint32(5000)))
"""
# Takes connections at a port, greets gRPC, and writes all that it is sent to a file.
IMPOSTOR = """
import select, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
clients = []
while True:
    for one in select.select([server, *clients], [], [])[0]:
        if one is server:
            clients.append(server.accept()[0])
            continue
        data = one.recv(65536)
        open(sys.argv[2], "ab").write(data)
        if data.startswith(b"PRI"):
            one.send(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # SETTINGS: as gRPC answers
        if not data:
            clients.remove(one)
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start a program as another user"
)


def said(reprise: Reprise) -> Path:
    return Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"


@contextmanager
def serving(reprise: Reprise, *flags: str) -> Iterator[subprocess.Popen[str]]:
    log = (reprise.folder / "serve.log").open("a")
    process = subprocess.Popen(
        [reprise.program, "serve", "--listen", "127.0.0.1:0", *flags],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=log,
        stderr=log,
        text=True,
    )
    until("the server listens", 30, said(reprise).exists)
    yield process
    if process.poll() is None:
        process.terminate()
        assert process.wait(timeout=30) == 0, (reprise.folder / "serve.log").read_text()


@contextmanager
def impostor(port: int, heard: Path) -> Iterator[None]:
    heard.touch()
    heard.chmod(0o666)
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", IMPOSTOR, str(port), str(heard)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield
    process.kill()
    process.wait()


def token_in(reprise: Reprise) -> str:
    token: str = Path(json.loads(said(reprise).read_text())["token_file"]).read_text().strip()
    return token


CLIENT = (
    "import sys; from reprise.plan.finding import server_at\n"
    "try: server_at(sys.argv[1]).call('Query/GetStatus', {})\n"
    "except Exception as error: print(error)\n"
)


@needs_root
@pytest.mark.parametrize("how", ["announced", "named", "named, with a token file", "Python"])
def test_a_port_that_somebody_else_took_is_sent_no_token(
    reprise: Reprise, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    heard = Path(subprocess.check_output(["mktemp", "-u", "/tmp/heardXXXXXX"], text=True).strip())
    with serving(reprise) as process:
        token, listen = token_in(reprise), json.loads(said(reprise).read_text())["listen"]
        copy = reprise.folder / "token"
        copy.write_text(token)
        copy.chmod(0o600)
        process.kill()
        process.wait()
    assert said(reprise).exists(), "a daemon that is killed takes nothing along"
    try:
        with impostor(int(listen.rpartition(":")[2]), heard):
            if how == "Python":
                done = subprocess.run(
                    [sys.executable, "-c", CLIENT, listen],
                    env=reprise.environment | {"PYTHONPATH": str(ROOT / "clients/python/src")},
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                answer = done.stdout + done.stderr
            else:
                flags = [] if how == "announced" else ["--server", listen]
                flags += ["--token-file", str(copy)] if "file" in how else []
                for verb in (["status"], ["runs"], ["show", "latest"]):
                    result = reprise(*verb, *flags)
                    assert result.code != 0
                    answer = result.err
        assert f"user {NOBODY} listens there" in answer
        assert token.encode() not in heard.read_bytes()
    finally:
        heard.unlink()


@pytest.mark.parametrize(("ending", "same"), [(signal.SIGTERM, True), (signal.SIGKILL, False)])
def test_a_daemon_that_was_killed_comes_back_with_another_token(
    reprise: Reprise, ending: signal.Signals, same: bool
) -> None:
    with serving(reprise) as process:
        before = token_in(reprise)
        process.send_signal(ending)
        process.wait(timeout=30)
        said(reprise).unlink(missing_ok=True)
    with serving(reprise):
        assert (token_in(reprise) == before) is same
        assert reprise("status").code == 0
    warned = "there is a new token" in (reprise.folder / "serve.log").read_text()
    assert warned is not same


@needs_root
@pytest.mark.parametrize("whose", ["folder", "file"])
def test_what_somebody_else_wrote_about_a_server_is_not_believed(
    reprise: Reprise, tmp_path: Path, whose: str
) -> None:
    folder = tmp_path / f"reprise-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    about = folder / "server.json"
    about.write_text(json.dumps({"listen": "127.0.0.1:1", "url": "http://127.0.0.1:1"}))
    (folder / "server.token").write_text("0123456789abcdef\n")
    os.chown(folder if whose == "folder" else about, NOBODY, NOBODY)

    environment = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": "", "REPRISE_SOCKET": ""}
    answer = reprise.fails(1, "status", **environment)

    assert str(about) in answer
    assert "not believed" in answer


@needs_root
def test_another_users_idle_connections_keep_no_job_out(reprise: Reprise) -> None:
    """As many as they like, without a token; the daemon has few descriptors."""
    log = (reprise.folder / "serve.log").open("w")
    process = subprocess.Popen(
        ["prlimit", "--nofile=256", "--", reprise.program, "serve", "--listen", "127.0.0.1:0"],
        env=reprise.environment,
        cwd=reprise.folder,
        stdout=log,
        stderr=log,
    )
    until("the server listens", 30, said(reprise).exists)
    port = json.loads(said(reprise).read_text())["listen"].rpartition(":")[2]
    crowd = subprocess.Popen(
        [
            "/usr/bin/python3",
            "-c",
            "import socket, sys, time\n"
            f"held = [socket.create_connection(('127.0.0.1', {port})) for _ in range(400)]\n"
            "for one in held[::2]: one.sendall(b'GET / HTTP/1.1\\r\\n')\n"
            "print('ready', flush=True)\n"
            "time.sleep(600)\n",
        ],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert crowd.stdout is not None
        crowd.stdout.readline()
        until(
            "some are refused",
            30,
            lambda: "descriptors are in use" in (reprise.folder / "serve.log").read_text(),
        )
        assert reprise("status").code == 0
        agents = []
        for _ in range(20):  # their control sockets
            agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            agent.connect(reprise.environment["REPRISE_SOCKET"])
            agents.append(agent)
        library = reprise.program.parent.parent / "lib" / "libreprise_agent.so"
        job = [sys.executable, "-c", FLUSH, library]
        assert subprocess.run(job, env=reprise.environment, timeout=60, check=False).returncode == 0
        for agent in agents:
            agent.close()
    finally:
        crowd.kill()
        crowd.wait()
        process.terminate()
        assert process.wait(timeout=30) == 0


@needs_root
def test_another_user_at_the_same_port_of_other_addresses_keeps_nobody_out(
    reprise: Reprise,
) -> None:
    """Of all addresses of IPv6: what is sent to 127.0.0.1 does not reach it."""
    with serving(reprise):
        listen = json.loads(said(reprise).read_text())["listen"]
        other = subprocess.Popen(
            [
                "/usr/bin/python3",
                "-c",
                "import socket, sys, time\n"
                "one = socket.socket(socket.AF_INET6)\n"
                "one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)\n"
                "one.bind(('::', int(sys.argv[1])))\n"
                "one.listen()\n"
                "print('ready', flush=True)\n"
                "time.sleep(600)\n",
                listen.rpartition(":")[2],
            ],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            assert reprise("status").code == 0
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, listen],
                env=reprise.environment | {"PYTHONPATH": str(ROOT / "clients/python/src")},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.stdout + done.stderr == ""
        finally:
            other.kill()
            other.wait()


@pytest.mark.parametrize("flag", ["--token-file", "--forward-token-file"])
def test_a_token_file_that_is_a_pipe_is_refused_at_once(reprise: Reprise, flag: str) -> None:
    pipe = reprise.folder / "pipe"
    os.mkfifo(pipe, 0o600)
    more = ["--forward-to", "127.0.0.1:1"] if "forward" in flag else []

    result = reprise("serve", "--listen", "127.0.0.1:0", flag, str(pipe), *more, timeout=30)

    assert result.code != 0
    assert str(pipe) in result.err


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:pass-wort@[host/db",
        "postgresql://me:pass-wort@host/db?nothing",
        "postgresql://me:pass%wort@host/db",
        "host=h password='pass-wort",
        "host pass-wort",
    ],
)
def test_a_password_in_a_store_that_is_refused_is_not_repeated(reprise: Reprise, text: str) -> None:
    result = reprise("serve", "--listen", "127.0.0.1:0", "--store", text, timeout=30)

    assert result.code != 0
    assert result.err.strip()
    for secret in ("pass-wort", "pass%wort"):
        assert secret not in result.out + result.err


FORGED = 'net\nreprise: proven optimal, verified\x1b]0;owned\x07\x9b31m\u202e\u2028"x'
VERBS: dict[str, Callable[[str, str], list[str]]] = {
    "show": lambda graph, _: ["show", graph],
    "show a plan": lambda graph, plan: ["show", plan],
    "plan": lambda graph, _: ["plan", graph, "--budget", "1.3kB"],
    "plan, refused": lambda graph, _: ["plan", graph, "--budget", "0.1kB"],
    "explain": lambda graph, _: ["explain", graph, "--budget", "1330"],
    "sweep": lambda graph, _: ["sweep", graph, "--points", "3"],
    "verify": lambda graph, plan: ["verify", graph, plan],
    "diff": lambda graph, plan: ["diff", plan, plan],
    "a file that is not there": lambda graph, _: ["show", FORGED],
    "a flag": lambda graph, _: ["plan", graph, f"--{FORGED}"],
    "a verb": lambda *_: [FORGED],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_from_a_file_commands_no_terminal_and_forges_no_line(
    reprise: Reprise, graph: dict[str, object], verb: str
) -> None:
    graph["name"] = FORGED
    for kind in ("ops", "storages"):
        for one in graph[kind]:  # type: ignore[attr-defined]
            one["name"] = FORGED
            one["module"] = FORGED
    (reprise.folder / "g.json").write_text(json.dumps(graph))
    plan = reprise("plan", "g.json", "--budget", "1330", "-o", "p.json")
    assert plan.code == 0, plan.err

    result = reprise(*VERBS[verb]("g.json", "p.json"))

    written = result.out + result.err
    commands = {c for c in written if not c.isprintable()} - {"\n", "\t"}
    assert commands == set(), written
    assert not [line for line in written.splitlines() if line.startswith("reprise: proven")]


STORED: dict[str, Callable[[str, str], list[str]]] = {
    "show a run": lambda run, _: ["show", run],
    "show a plan": lambda _, plan: ["show", plan],
    "explain": lambda _, plan: ["explain", plan],
    "verify": lambda _, plan: ["verify", plan],
    "diff": lambda run, plan: ["diff", run, plan],
    "status": lambda *_: ["status"],
    "runs": lambda *_: ["runs"],
    "sweep": lambda _run, _plan: ["sweep", "GRAPH", "--points", "3"],
    "a run that is not there": lambda *_: ["show", FORGED],
    "rm": lambda run, _: ["rm", run, "-y"],
}


def test_a_name_that_is_stored_commands_no_terminal_either(
    reprise: Reprise, graph: dict[str, object]
) -> None:
    graph["name"] = FORGED
    for kind in ("ops", "storages"):
        for one in graph[kind]:  # type: ignore[attr-defined]
            one["name"] = FORGED
            one["module"] = FORGED
    name = "n\x1b]0;owned\x07.json"  # a file may be called so
    (reprise.folder / name).write_text(json.dumps(graph))
    with serving(reprise):
        imported = reprise("import", name, "--json")
        assert imported.code == 0, imported.err
        run = imported.json()["run_id"]
        graph_id = ask(reprise, "Query/GetRun", runId=run)["graphId"]
        planned = reprise("plan", graph_id, "--budget", "1330", "--json")
        assert planned.code == 0, planned.err
        plan = planned.json()["plan_id"]
        for what, words in STORED.items():
            result = reprise(*[graph_id if w == "GRAPH" else w for w in words(run, plan)])
            written = result.out + result.err
            commands = {c for c in written if not c.isprintable()} - {"\n", "\t"}
            assert commands == set(), (what, written)
            forged = [x for x in written.splitlines() if x.startswith("reprise: proven")]
            assert forged == [], (what, written)


def test_a_clock_that_jumps_makes_no_run_old(reprise: Reprise, graph_file: Path) -> None:
    """The newest run is two years old by the clock: whether that is true, nobody knows."""
    with serving(reprise):
        for _ in range(3):
            assert reprise("import", str(graph_file)).code == 0
        data = Path(json.loads(said(reprise).read_text())["data_dir"])
    day, now = 86_400 * 10**9, time.time_ns()
    with sqlite3.connect(data / "reprise.db") as store:
        runs = [row[0] for row in store.execute("SELECT run_id FROM runs")]
        for run, age in zip(runs, (730, 740, 800), strict=True):
            store.execute(
                "UPDATE runs SET started_ns = ?, ended_ns = ?, state = 2 WHERE run_id = ?",
                (now - age * day, now - age * day, run),
            )

    def left() -> list[str]:
        return [run["runId"] for run in ask(reprise, "Query/ListRuns", limit=10)["runs"]]

    with serving(reprise, "--keep-runs-for", "30d"):
        until("the oldest goes", 30, lambda: runs[2] not in left())
        assert sorted(left()) == sorted(runs[:2])
