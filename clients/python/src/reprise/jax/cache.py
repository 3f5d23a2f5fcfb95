# SPDX-License-Identifier: Apache-2.0
"""The user's cache folder, and the programs that XLA compiled for Reprise in it.

    cached(compile)    # what an earlier process compiled of the same program is loaded

JAX's own compilation cache finds them, by the program, the options and the versions. It is switched
on only while Reprise compiles, and only where the program has no folder of its own for it. What is
loaded is machine code: the folder must be private, and is one for each kind of processor.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import jax
from jax.experimental.compilation_cache import compilation_cache

# Of programs; the newest stay.
MOST_BYTES = 256 << 20
MOST_PROGRAMS = 2048

_T = TypeVar("_T")


def folder() -> Path:
    """Returns the folder. Raises OSError if it cannot be one, or somebody else can write there."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    found = Path(base) / "reprise" / "jax"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(found.stat()):
        raise PermissionError(f"{found}: others can write there")
    return found


def is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else can write it."""
    kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def cached(compile_it: Callable[[], _T]) -> _T:
    """Returns what `compile_it` returns, which compiles a program. A program that cannot be read or
    written is compiled once more, and none is kept."""
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return compile_it()
    try:
        programs = _programs()
    except OSError:
        return compile_it()
    try:
        with _switched_on(programs):
            return compile_it()
    except Exception:  # also of a damaged file; an error of the program comes again
        for file in programs.iterdir():
            _remove(file)
        return compile_it()


@contextmanager
def _switched_on(programs: Path) -> Iterator[None]:
    wanted = {
        "jax_compilation_cache_dir": str(programs),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_raise_persistent_cache_errors": True,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    compilation_cache.reset_cache()
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _programs() -> Path:
    """Returns the folder of this processor's programs. Raises OSError as `folder`, and if others
    can read it: a file in it may have the rights that JAX gave it."""
    programs = folder() / f"xla-{_processor()}"
    programs.mkdir(mode=0o700, exist_ok=True)
    status = programs.lstat()
    if not stat.S_ISDIR(status.st_mode) or not is_ours(status) or status.st_mode & 0o077:
        raise PermissionError(f"{programs}: others can read there")
    _make_room(programs)
    return programs


@cache
def _processor() -> str:
    """Returns what tells processors apart for which XLA compiles differently."""
    said = [platform.machine()]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said += sorted({line for line in lines if line.startswith(("flags", "Features", "model"))})
    return sha256("\n".join(said).encode()).hexdigest()[:16]


def _make_room(programs: Path) -> None:
    """Removes the oldest programs above MOST_BYTES and MOST_PROGRAMS."""
    sizes = []
    for file in programs.iterdir():
        with suppress(OSError):
            status = file.lstat()
            sizes.append((status.st_mtime, status.st_size, file))
    total = 0
    for number, (_, size, file) in enumerate(sorted(sizes, reverse=True)):
        total += size
        if total > MOST_BYTES or number >= MOST_PROGRAMS:
            _remove(file)


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()
