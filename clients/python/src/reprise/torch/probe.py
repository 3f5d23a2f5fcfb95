# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the probe (probe.cc), the exact meter of the CPU's memory.

    python -m reprise.torch.probe build       # ahead of time; prints where it is

The probe is compiled against the headers of the installed torch (about a
second) into a cache folder, under a name made of torch's version and the
source, so that another torch never loads this one's. It is loaded by ctypes
and never unloaded. Everything that can go wrong is a `RepriseError` with one
sentence; the caller then falls back to a meter in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from reprise.errors import RepriseError

COMPILE_TIMEOUT_S = 120

_SOURCE = Path(__file__).with_name("probe.cc")

# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "reprise_probe_install": (ctypes.c_int, []),
    "reprise_probe_uninstall": (None, []),
    "reprise_probe_installed": (ctypes.c_int, []),
    "reprise_probe_live": (ctypes.c_int64, []),
    "reprise_probe_peak": (ctypes.c_int64, []),
    "reprise_probe_reset_peak": (None, []),
    "reprise_probe_events_begin": (None, [ctypes.c_void_p, ctypes.c_int64]),
    "reprise_probe_events_end": (None, []),
}


@cache
def load() -> ctypes.PyDLL:
    """The probe, built first where it is not in the cache."""
    folder = cache_folder()
    if folder is None:
        # A library may be deleted once it is mapped.
        with tempfile.TemporaryDirectory(prefix="reprise-probe-") as temporary:
            return _open(build(Path(temporary)))
    return _open(build(folder))


def cache_folder() -> Path | None:
    """Where built probes are kept; None where no folder of this user's can be had."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "reprise" / "probe"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _is_ours(folder) and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def build(folder: Path) -> Path:
    """The probe for the installed torch in `folder`; compiles it when it is not there."""
    target = folder / f"{_fingerprint()}.so"
    # Code that somebody else may have put there is not loaded.
    if target.is_file() and _is_ours(target):
        return target
    compiler = _compiler()
    handle, temporary = tempfile.mkstemp(prefix="probe-", suffix=".so", dir=folder)
    os.close(handle)
    try:
        _compile(compiler, Path(temporary))
        os.chmod(temporary, 0o700)
        # Atomic, so that ranks that build at the same time do not see half a file.
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    raise RepriseError(
        f"no C++ compiler found ({named or 'c++, g++, clang++'}); "
        "install g++ or name one with CXX to measure memory exactly"
    )


def _compile(compiler: str, target: Path) -> None:
    root = Path(torch.__file__).parent
    command = [
        compiler,
        "-O2",
        "-DNDEBUG",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-std=gnu++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        "-isystem",
        str(root / "include"),
        str(_SOURCE),
        "-o",
        str(target),
        f"-L{root / 'lib'}",
        "-lc10",
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RepriseError(
            f"{compiler}: did not finish the memory probe in {COMPILE_TIMEOUT_S} s"
        ) from None
    except OSError as error:
        raise RepriseError(f"{compiler}: cannot be run ({error.strerror})") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise RepriseError(f"{compiler}: cannot build the memory probe ({lines[0].strip()[:200]})")


def _open(path: Path) -> ctypes.PyDLL:
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise RepriseError(f"{path}: cannot be loaded ({error})") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _fingerprint() -> str:
    """Changes with anything that changes the binary: torch's build, our source, Python's
    architecture."""
    digest = hashlib.sha256()
    facts = [torch.__version__, str(torch.version.git_version), os.uname().machine]
    for fact in facts:
        digest.update(fact.encode() + b"\0")
    digest.update(_SOURCE.read_bytes())
    version = "".join(c if c.isalnum() or c in ".+" else "_" for c in torch.__version__)
    return f"probe-{version}-{digest.hexdigest()[:16]}"


def _is_ours(path: Path) -> bool:
    """Belongs to this user, and nobody else can write to it."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def main(arguments: list[str]) -> int:
    if arguments != ["build"]:
        print("usage: python -m reprise.torch.probe build", file=sys.stderr)
        return 2
    folder = cache_folder()
    if folder is None:
        print("the cache folder cannot be written; set XDG_CACHE_HOME", file=sys.stderr)
        return 1
    try:
        path = build(folder)
        _open(path)
    except RepriseError as error:
        print(error, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
