# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: the source tree, the built agent and daemon, a private folder."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "clients" / "python" / "src"

# The tests run against this tree, also where the package is not installed.
if str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code or a script in a process of its own, with this tree's package."""

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


def _built(variable: str, relative: str) -> Path:
    path = Path(os.environ.get(variable) or ROOT / "build" / relative)
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
    """A machine of its own: runtime and state folders that hold nothing yet.

    Not tmp_path: the path of a Unix socket has room for 107 characters only.
    """
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/rpXXXXXX"], text=True).strip())
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in ("REPRISE_SOCKET", "REPRISE_SERVER", "REPRISE_DATA_DIR", "REPRISE_RUN_ID"):
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

RECORD_OP_BEGIN, RECORD_ALLOC, RECORD_STEP, RECORD_STEP_DONE = 6, 8, 9, 13
_MESSAGE, _BYE, _RECORDS = struct.Struct("<IHHII"), 4, 64
_SLOT, _SLOT_BYTES = struct.Struct("<QHBBIQ"), 64
_ALLOC = struct.Struct("<QqQQiI")


@dataclass
class Sink:
    """What a session wrote, as far as these tests ask."""

    sequences: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    # (address, signed bytes, what)
    allocs: list[tuple[int, int, int]] = field(default_factory=list)
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
            at += (size + 7) // 8 * 8
        return sink

    return read
