# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: the source tree, the built agent and daemon, separate folders."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "clients" / "python" / "src"

# A private daemon of a test does not stay for an hour.
os.environ.setdefault("REPRISE_LINGER", "2")

# The tests run against this tree, also where the package is not installed.
if str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Enables Ctrl-C: a process started in the background of a script ignores it, and so do its
    children."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code or a script in a separate process, with this tree's package."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


# Read once: single tests set these variables to other things.
_NAMED = {name: os.environ.get(name) for name in ("REPRISE_AGENT", "REPRISE_DAEMON")}


def _built(variable: str, relative: str) -> Path:
    path = Path(_NAMED[variable] or ROOT / "build" / relative)
    if not path.is_file():
        pytest.fail(f"{path}: not built; run scripts/build or set {variable}", pytrace=False)
    return path


@pytest.fixture(scope="session")
def agent_library() -> Path:
    """The built libreprise_agent.so."""
    return _built("REPRISE_AGENT", "lib/libreprise_agent.so")


@pytest.fixture(scope="session")
def daemon_binary() -> Path:
    """The built reprised."""
    return _built("REPRISE_DAEMON", "bin/reprised")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes empty runtime and state folders for a test. They are not in tmp_path, because the path
    of a Unix socket is limited to 107 characters."""
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/rpXXXXXX"], text=True).strip())
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in (
        "REPRISE_SOCKET",
        "REPRISE_SERVER",
        "REPRISE_TOKEN_FILE",
        "REPRISE_DATA_DIR",
        "REPRISE_RUN_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Polls a condition; fails after a time that no healthy machine needs."""

    def wait(condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            time.sleep(0.01)

    return wait


# ---- The file sink (profiler/include/reprise_sink.h) ------------------------

RECORD_OP_BEGIN, RECORD_OP_END, RECORD_ALLOC, RECORD_STEP, RECORD_STEP_DONE = 6, 7, 8, 9, 13
_MESSAGE, _BYE, _RECORDS = struct.Struct("<IHHII"), 4, 64
_SLOT, _SLOT_BYTES = struct.Struct("<QHBBIQ"), 64
_ALLOC, _OP = struct.Struct("<QqQQiI"), struct.Struct("<QQqQII")


@dataclass
class Sink:
    """What a session wrote into the file sink, as far as these tests need it."""

    sequences: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    # (address, signed bytes, what)
    allocs: list[tuple[int, int, int]] = field(default_factory=list)
    # (op, parent, sequence number, forward thread, name, shapes)
    begun: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    clean_end: bool = False


@pytest.fixture
def read_sink() -> Callable[[Path], Sink]:
    def read(path: Path) -> Sink:
        sink, data, at = Sink(), path.read_bytes(), 0
        while at < len(data):
            _, kind, _, size, _ = _MESSAGE.unpack_from(data, at)
            at += _MESSAGE.size
            sink.clean_end = kind == _BYE
            for slot in range(at, at + size, _SLOT_BYTES) if kind == _RECORDS else ():
                sequence, record, *_ = _SLOT.unpack_from(data, slot)
                sink.sequences.append(sequence)
                sink.kinds.append(record)
                if record == RECORD_ALLOC:
                    address, bytes_, _, _, _, what = _ALLOC.unpack_from(data, slot + _SLOT.size)
                    sink.allocs.append((address, bytes_, what))
                elif record in (RECORD_OP_BEGIN, RECORD_OP_END):
                    op = _OP.unpack_from(data, slot + _SLOT.size)
                    if record == RECORD_OP_BEGIN:
                        sink.begun.append(op)
                    else:
                        sink.ended.append(op[0])
            at += (size + 7) // 8 * 8
        return sink

    return read


# ---- A collector that answers as a test tells it ----------------------------
#
# Speaks the control socket (profiler/include/reprise_wire.h) to one agent, so
# that a test can send what no daemon of ours would.

_HELLO, _GRAPH, _WELCOME, _PLAN, _PLAN_STATUS = 1, 5, 16, 18, 19
_MAGIC, _LAYOUT = 0x31505252, 1


class ScriptedCollector(threading.Thread):
    """Welcomes an agent and answers every graph with `answer`: a plan's bytes, a sentence with
    the smallest budget, or nothing."""

    def __init__(
        self, path: Path, answer: bytes | tuple[str, int] | None, layout: int = _LAYOUT
    ) -> None:
        super().__init__(daemon=True)
        self._layout = layout
        self.path = path
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self.graphs: list[int] = []

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                while self._one_message(connection):
                    pass

    def _one_message(self, connection: socket.socket) -> bool:
        data, fds, _, _ = socket.recv_fds(connection, 1 << 15, 8)
        for fd in fds:
            os.close(fd)
        if len(data) < _MESSAGE.size:
            return False
        _, kind, _, _, request = _MESSAGE.unpack_from(data)
        if kind == _HELLO:
            self._send(
                connection, _WELCOME, struct.pack("<II32s", self._layout, 0, b"test"), request
            )
        elif kind == _GRAPH:
            (graph,) = struct.unpack_from("<Q", data, _MESSAGE.size)
            self.graphs.append(graph)
            # An answer names the request: `request_id` of reprise_msg_graph.
            (asked,) = struct.unpack_from("<Q", data, _MESSAGE.size + 56)
            self._reply(connection, asked, request)
        return True

    def _reply(self, connection: socket.socket, asked: int, request: int) -> None:
        if isinstance(self._answer, bytes):
            body = struct.pack("<QQQQQII", asked, 255, len(self._answer), 1000, 2000, 0, 0)
            self._send(connection, _PLAN, body, request, [_sealed(self._answer)])
        elif self._answer is not None:
            sentence, smallest = self._answer
            text = sentence.encode()
            infeasible = 2
            body = struct.pack("<QQII", asked, smallest, infeasible, len(text)) + text
            self._send(connection, _PLAN_STATUS, body, request)

    def _send(
        self,
        connection: socket.socket,
        kind: int,
        body: bytes,
        request: int,
        fds: list[int] | None = None,
    ) -> None:
        message = _MESSAGE.pack(_MAGIC, kind, self._layout, len(body), request) + body
        socket.send_fds(connection, [message], fds or [])
        for fd in fds or []:
            os.close(fd)


def _sealed(content: bytes) -> int:
    fd = os.memfd_create("test-plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.fixture
def collector(home: Path) -> Callable[..., ScriptedCollector]:
    def start(answer: bytes | tuple[str, int] | None, layout: int = _LAYOUT) -> ScriptedCollector:
        made = ScriptedCollector(home / "c.sock", answer, layout)
        made.start()
        return made

    return start


# ---- The real daemon --------------------------------------------------------


@dataclass(frozen=True)
class Reprised:
    """A running daemon that belongs to the test."""

    socket: Path
    url: str
    token: str

    def query(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        """Calls an RPC of reprise.v1.Query, as a browser does."""
        call = urllib.request.Request(
            f"{self.url}/reprise.v1.Query/{method}",
            data=json.dumps(request).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.token}",
            },
        )
        try:
            with urllib.request.urlopen(call, timeout=30) as reply:
                answer: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            # NOT_FOUND until the first chunk has been ingested.
            return {"state": "", "error": error.read().decode()}
        return answer


@pytest.fixture
def reprised(
    home: Path, daemon_binary: Path, until: Callable[[Callable[[], bool]], None]
) -> Iterator[Callable[[], Reprised]]:
    children: list[subprocess.Popen[bytes]] = []

    def start() -> Reprised:
        path = home / "run" / "agent.sock"
        child = subprocess.Popen(
            [daemon_binary, "--listen", "127.0.0.1:0", "--agent-socket", path],
            env={**os.environ, "REPRISE_DATA_DIR": str(home / "state")},
            stdin=subprocess.DEVNULL,
        )
        children.append(child)
        about = path.with_name("server.json")
        until(lambda: about.is_file() or child.poll() is not None)
        assert child.poll() is None, "reprised ended at once"
        said = json.loads(about.read_text())
        token = Path(said.get("token_file", os.devnull)).read_text().strip()
        return Reprised(path, said["url"], token)

    yield start
    for child in children:
        child.terminate()
        assert child.wait(timeout=60) == 0
