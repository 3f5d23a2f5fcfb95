# SPDX-License-Identifier: Apache-2.0
"""Compiles C++ files against the installed torch, and keeps the libraries.

    part = Native("probe", "reprise.torch.meter.probe", SOURCES / "probe.cc", "the memory probe",
                  libraries=("c10",))
    path = part.build(part.cache_folder())

A library is stored in a cache folder under a name made of torch's version and a digest of the
source, so that another torch never loads it. A wheel brings libraries for a few releases of torch,
under the same names; `found` returns either. Every failure is a `RepriseError` with one sentence;
callers go on without the library.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from reprise.base.errors import RepriseError

SOURCES = Path(__file__).parents[1] / "compiled"
# Where a wheel brings libraries that scripts/wheel has built.
PREBUILT = SOURCES / "prebuilt"

# Of the clock: on a machine that is busy with training, a compiler of low priority takes many times
# the half minute of processor time that it needs.
COMPILE_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Native:
    """One C++ file and how it is built."""

    name: str
    module: str  # builds it: `python -m MODULE build`
    source: Path
    what: str  # what messages call it
    libraries: tuple[str, ...]
    why: str = ""  # what it is for, in messages
    python: bool = False  # whether it is an extension module of this Python
    parts: tuple[Path, ...] = ()  # our headers that it includes
    flags: tuple[str, ...] = ()  # additional compiler flags

    def cache_folder(self) -> Path | None:
        """Returns the folder where libraries are kept; None if this user has no safe, writable
        one."""
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = Path(base) / "reprise" / self.name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return None
        return folder if _is_ours(folder) and os.access(folder, os.W_OK) else None

    def prebuilt(self) -> Path | None:
        """Returns the library for the installed torch that came with the package; None if there is
        none, or if it cannot be loaded here, as beside an older C library."""
        if not PREBUILT.is_dir():
            return None
        target = PREBUILT / f"{self._fingerprint()}.so"
        if not target.is_file() or not _is_ours(target, or_roots=True):
            return None
        try:
            ctypes.CDLL(str(target))
        except OSError:
            return None
        return target

    def found(self) -> Path | None:
        """Returns the library for the installed torch: the one that came with the package, or the
        one in the cache folder; None if neither is there."""
        shipped = self.prebuilt()
        if shipped is not None:
            return shipped
        folder = self.cache_folder()
        return None if folder is None else self.built(folder)

    def built(self, folder: Path) -> Path | None:
        """Returns the library for the installed torch if it is in the folder already."""
        target = folder / f"{self._fingerprint()}.so"
        # A library that another user may have put there is not loaded.
        return target if target.is_file() and _is_ours(target) else None

    def build(self, folder: Path) -> Path:
        """Returns the library for the installed torch in `folder`, and compiles it first if
        necessary: in one process at a time, whose result the others take. Raises RepriseError if
        that fails."""
        found = self.built(folder)
        if found is not None:
            return found
        compiler = self._compiler()
        with _one_at_a_time(folder / f"{self.name}.lock") as alone:
            found = self.built(folder)  # by another job meanwhile
            if found is not None:
                return found
            unfinished = f".{self.name}-"
            for left in folder.glob(f"{unfinished}*") if alone else ():
                left.unlink(missing_ok=True)  # of a compiler that was killed
            target = folder / f"{self._fingerprint()}.so"
            handle, temporary = tempfile.mkstemp(prefix=unfinished, suffix=".so", dir=folder)
            os.close(handle)
            try:
                self._compile(compiler, Path(temporary))
                os.chmod(temporary, 0o700)
                # Atomic, so that ranks that build at the same time never load half a file.
                os.replace(temporary, target)
            finally:
                Path(temporary).unlink(missing_ok=True)
            return target

    def _compiler(self) -> str:
        named = os.environ.get("CXX")
        for name in [named] if named else ["c++", "g++", "clang++"]:
            found = shutil.which(name)
            if found:
                return found
        raise RepriseError(
            f"no C++ compiler found ({named or 'c++, g++, clang++'}); "
            f"install g++ or name one with CXX {self.why}"
        )

    def _compile(self, compiler: str, target: Path) -> None:
        root = Path(torch.__file__).parent
        command = [
            compiler,
            "-O2",
            "-DNDEBUG",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-std=gnu++20",
            *self.flags,
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            "-isystem",
            str(root / "include"),
            *(["-isystem", sysconfig.get_path("include")] if self.python else []),
            str(self.source),
            "-o",
            str(target),
            f"-L{root / 'lib'}",
            *(f"-l{library}" for library in self.libraries),
        ]
        try:
            code, printed = _run(command)
        except subprocess.TimeoutExpired:
            raise RepriseError(
                f"{compiler}: did not finish {self.what} in {COMPILE_TIMEOUT_S} s"
            ) from None
        except OSError as error:
            raise RepriseError(f"{compiler}: cannot be run ({error.strerror})") from None
        if code != 0:
            lines = [line for line in printed.splitlines() if "error" in line]
            said = (lines or ["no message"])[0].strip()[:200]
            raise RepriseError(f"{compiler}: cannot build {self.what} ({said})")

    def _fingerprint(self) -> str:
        """Returns a name that changes with everything that changes the library: torch's build, our
        source, Python and the flags."""
        digest = hashlib.sha256()
        facts = [torch.__version__, str(torch.version.git_version), os.uname().machine]
        facts += [sys.implementation.cache_tag or ""] if self.python else []
        for fact in (*facts, *self.flags):
            digest.update(fact.encode() + b"\0")
        for file in (self.source, *self.parts):
            digest.update(file.read_bytes())
        version = "".join(c if c.isalnum() or c in ".+" else "_" for c in torch.__version__)
        return f"{self.name}-{version}-{digest.hexdigest()[:16]}"

    def main(self, arguments: list[str]) -> int:
        """Implements `python -m ... build [--into FOLDER]`: builds the library, for the cache or
        for a folder, and prints its path. Returns the exit code."""
        into = len(arguments) == 3 and arguments[:2] == ["build", "--into"]
        if arguments != ["build"] and not into:
            print(f"usage: python -m {self.module} build [--into FOLDER]", file=sys.stderr)
            return 2
        folder = Path(arguments[2]) if into else self.cache_folder()
        if folder is None:
            print("the cache folder cannot be written; set XDG_CACHE_HOME", file=sys.stderr)
            return 1
        try:
            print(self.build(folder))
        except RepriseError as error:
            print(error, file=sys.stderr)
            return 1
        return 0


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[bool]:
    """Waits for all others of this machine that hold the lock, and holds it. Yields whether it
    does: some file systems have no locks, and two compilers do no harm."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(handle)


def _run(command: list[str]) -> tuple[int, str]:
    """Runs a compiler; returns its exit code and what it wrote to stderr. A compiler is several
    processes: if it takes too long (subprocess.TimeoutExpired), or is interrupted, all are killed.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, printed = process.communicate(timeout=COMPILE_TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed


def _is_ours(path: Path, or_roots: bool = False) -> bool:
    """Returns whether a file belongs to this user, or root where that is allowed, and nobody else
    can write to it."""
    status = path.stat()
    owners = {os.getuid(), *([0] if or_roots else [])}
    return status.st_uid in owners and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
