# SPDX-License-Identifier: Apache-2.0
"""Finds the daemon for this job, or starts a private one.

    collector = daemon.ensure()
    if collector.socket is None: print(collector.why)      # train without a plan

It tries the sockets `REPRISE_SOCKET`, `/run/reprise/agent.sock`, and the one in
this user's runtime folder. If none answers, it starts `reprised --private`
there, under a lock, so that the ranks of one host share it; that daemon ends by
itself after the last of them. It runs in a session of its own, so that a Ctrl-C
at the job does not end it and the job's last records still arrive.

A missing daemon raises nothing here: `why` gives the reason in one sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reprise.agent import abi, bundled
from reprise.base.errors import RepriseError

SYSTEM_SOCKET = Path("/run/reprise/agent.sock")
START_TIMEOUT_S = 15.0
# What a daemon prints if another one uses its folder.
_TAKEN = "another reprised"
POLL_S = 0.02

# Kept for the life of the process: Popen warns if it is collected while its
# child runs.
_children: list[subprocess.Popen[bytes]] = []
# By socket: the daemon that was started there, and its output.
_listening: dict[Path, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}


@dataclass(frozen=True, slots=True)
class Collector:
    """The socket to which the agent connects. If there is none, `why` is the reason."""

    socket: Path | None
    # Whether this call started the daemon.
    started: bool = False
    why: str = ""


def runtime_dir() -> Path:
    """Returns this user's folder for sockets, and makes it (0700) if it is missing.

    Raises RepriseError if it cannot be made, or belongs to another user."""
    folder = _own_socket().parent
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise RepriseError(f"{folder}: cannot be made ({error.strerror})") from None
    if not stat.S_ISDIR(status.st_mode):
        raise RepriseError(f"{folder}: is not a folder; remove it or set XDG_RUNTIME_DIR")
    if status.st_uid != os.getuid():
        raise RepriseError(
            f"{folder}: belongs to user {status.st_uid}, not to this one; set XDG_RUNTIME_DIR"
        )
    if status.st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError as error:
            raise RepriseError(f"{folder}: open to others ({error.strerror})") from None
    return folder


def socket_paths() -> list[Path]:
    """Returns the sockets where a collector may listen, in the order to try."""
    named = os.environ.get("REPRISE_SOCKET")
    if named:
        return [Path(named)]
    paths = [SYSTEM_SOCKET] if SYSTEM_SOCKET.exists() else []
    with contextlib.suppress(RepriseError):
        paths.append(runtime_dir() / "agent.sock")
    return paths


def find() -> Path | None:
    """Returns the socket of a collector that answers now; None if there is none."""
    return next((path for path in socket_paths() if answers(path)), None)


def ensure(timeout_s: float = START_TIMEOUT_S, stay: bool = False) -> Collector:
    """Returns a collector that answers: an existing one, or a private one that is started now. With
    `stay`, a private one does not end before this process, whether or not it has a job."""
    try:
        found = find()
        if found is not None:
            return Collector(found)
        path = _private_socket()
        with _start_lock(path.parent, timeout_s):
            # Another rank may have started it while this one waited.
            deadline = time.monotonic() + timeout_s
            while not answers(path):
                try:
                    _start(path, timeout_s, stay)
                    return Collector(path, started=True)
                except RepriseError as error:
                    # An older daemon has closed its socket but has not ended yet.
                    if _TAKEN not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(POLL_S)
            return Collector(path)
    except RepriseError as error:
        return Collector(None, why=str(error))


# ---- Folders and sockets ----------------------------------------------------


def _own_socket() -> Path:
    """Returns the socket of this user's daemon if no name is given: the same path as in the agent,
    the daemon and the command (profiler/include/reprise_sockets.h)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and _is_own(runtime):
        return Path(runtime) / "reprise" / "agent.sock"
    temporary = os.environ.get("TMPDIR") or "/tmp"
    return Path(temporary) / f"reprise-{os.geteuid()}" / "agent.sock"


def _is_own(folder: str) -> bool:
    """Returns whether a folder exists, belongs to this user and is writable."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and os.access(folder, os.W_OK | os.X_OK)
    )


def _private_socket() -> Path:
    """Returns the socket where a private daemon must listen so that the agent finds it. Raises
    RepriseError if its folder does not exist."""
    named = os.environ.get("REPRISE_SOCKET")
    if not named:
        return runtime_dir() / "agent.sock"
    path = Path(named)
    if not path.parent.is_dir():
        raise RepriseError(f"REPRISE_SOCKET={named}: there is no folder {path.parent}")
    return path


def answers(path: Path) -> bool:
    """Returns whether something listens on a socket. Connecting and disconnecting opens no
    session."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(1.0)
        try:
            s.connect(os.fspath(path))
        except (OSError, ValueError):
            return False
        return True


def why_gone(path: Path) -> str:
    """Returns one sentence on why the daemon is gone, with its exit code if this process started
    it."""
    child, log = _listening.get(path, (None, None))
    code = None if child is None else child.poll()
    if code is None or log is None:
        return "the daemon is gone"
    if code < 0:
        return f"the daemon is gone: signal {-code} ended it"
    return f"the daemon is gone: it ended with code {code} ({_last_line(log.fileno())})"


@contextlib.contextmanager
def _start_lock(folder: Path, timeout_s: float) -> Iterator[None]:
    """Lets one rank at a time start a daemon. This is not the daemon's own lock, which it holds
    while it runs. Raises RepriseError after `timeout_s`."""
    path = folder / "start.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RepriseError(f"{path}: cannot be opened ({error.strerror})") from None
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RepriseError(
                        f"{path}: held by another job for more than {timeout_s:.0f} s"
                    ) from None
                time.sleep(POLL_S)
            except OSError as error:
                raise RepriseError(f"{path}: cannot be locked ({error.strerror})") from None
        yield
    finally:
        os.close(handle)


# ---- The private daemon -----------------------------------------------------


def _binary() -> Path:
    named = os.environ.get("REPRISE_DAEMON")
    if named:
        found = shutil.which(named)
        if found is None:
            raise RepriseError(f"REPRISE_DAEMON={named}: is not a program")
        return Path(found)
    own = bundled.program("reprised")
    # A wheel contains the daemon of its own version; the build in a checkout may be older.
    if own is not None and bundled.checkout() is None:
        return own
    on_path = shutil.which("reprised")
    if on_path is not None:
        return Path(on_path)
    # A build tree has bin/reprised next to lib/libreprise_agent.so.
    for library in abi.candidates():
        for folder in (library.parent.parent / "bin", library.parent / "bin"):
            if len(library.parts) > 1 and os.access(folder / "reprised", os.X_OK):
                return folder / "reprised"
    raise RepriseError(
        "reprised: not found (not in PATH, no build beside the package); "
        "build it with scripts/build or name it with REPRISE_DAEMON"
    )


def _start(path: Path, timeout_s: float, stay: bool) -> None:
    """Starts `reprised --private` and waits until it answers at `path`. Raises RepriseError if it
    does not."""
    binary = _binary()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        try:
            child = subprocess.Popen(
                [
                    *(str(binary), "--private", "--agent-socket", str(path)),
                    *(["--with-parent", str(os.getpid())] if stay else []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise RepriseError(f"{binary}: cannot be started ({error.strerror})") from None
        _children.append(child)
        deadline = time.monotonic() + timeout_s
        while not answers(path):
            code = child.poll()
            if code is not None:
                # The daemon says in its last line why it cannot run.
                raise RepriseError(f"{binary} ended with code {code}: {_last_line(log.fileno())}")
            if time.monotonic() > deadline:
                child.terminate()
                raise RepriseError(
                    f"{binary}: did not listen on {path} within {timeout_s:.0f} s, stopped"
                )
            time.sleep(POLL_S)
        _listening[path] = (child, log)
        stack.pop_all()


def _last_line(handle: int) -> str:
    size = os.fstat(handle).st_size
    text = os.pread(handle, 4096, max(0, size - 4096)).decode("utf-8", "replace").strip()
    return text.splitlines()[-1][:400] if text else "it printed nothing"
