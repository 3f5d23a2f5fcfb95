# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the native engine of the tape (compiled/fast.cc).

    python -m reprise.torch.compiled.fast build        # ahead of time; prints where it is

    module = load(unpack, stale, modified)   # None: plans run in Python

What the Python engine does it does for less: an op that is only looked at and a tensor that is only
kept never reach the interpreter. A job does not wait for the compiler (some
ten seconds, once per torch): what is not built is built beside the job, and used from the next
program of this process on. REPRISE_FAST=0 does without, and so does a torch without the dispatch
key it needs. Why plans run in Python alone is said once, and `why_python` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import IO, Any

import torch

from reprise.saying import say
from reprise.torch.internals import guard, modes, saved_hooks
from reprise.torch.internals.native import SOURCES, Native
from reprise.torch.internals.ops import IGNORED, PLAIN_TYPES

__all__ = [
    "FAST",
    "Ground",
    "alone",
    "library",
    "load",
    "name_of",
    "prepare",
    "settle",
    "why_python",
    "without",
]

FAST = Native(
    "fast",
    SOURCES / "fast.cc",
    "the compiled tape",
    ("c10", "torch_cpu", "torch_python"),
    "to run plans with less overhead",
    python=True,
    parts=tuple(sorted(SOURCES.glob("*.h"))),
)

_KEY = "Fake"

_module: Any = None
_failed = False
_builder: subprocess.Popen[bytes] | None = None
_printed: IO[bytes] | None = None  # by the builder, as long as it runs
_why = ""  # plans run in Python alone
_operators = 0  # higher-order ones that know of the gate's key


def _wanted() -> bool:
    return os.environ.get("REPRISE_FAST", "1") != "0" and not _failed


def without(why: str) -> None:
    """Says once why plans run in Python alone, and keeps it for the report."""
    global _why
    if why != _why:
        _why = why
        say(f"{why}. Plans run in Python, with more overhead")


def why_python() -> str:
    """Returns why plans run in Python alone; "" if they do not."""
    if os.environ.get("REPRISE_FAST", "1") == "0":
        return "REPRISE_FAST=0"
    if not _why and _module is None and _builder is not None:
        return "the compiled tape is being built, for the next plan of this process"
    return _why


def settle() -> None:
    """Between steps: says if the compiler has ended without a result."""
    global _failed, _printed
    if _builder is None or _printed is None or _builder.poll() is None:
        return
    with _printed as printed:
        _printed = None
        if _builder.returncode == 0:
            return
        printed.seek(0)
        lines = printed.read().decode("utf-8", "replace").strip().splitlines()
    _failed = True
    without(f"the compiled tape is not built: {lines[-1] if lines else 'the compiler was ended'}")


def prepare() -> None:
    """Starts the compiler where nothing is built yet. Where that is not possible, this process runs
    its plans in Python alone, and says so."""
    global _builder, _failed, _printed
    if not _wanted() or _module is not None or _builder is not None:
        return
    folder = FAST.cache_folder()
    if folder is None:
        _failed = True
        without(
            "the compiled tape is not built: its folder reprise/fast in XDG_CACHE_HOME or ~/.cache "
            "cannot be written, or other users can write there"
        )
        return
    if FAST.built(folder) is None:
        command = [sys.executable, "-m", "reprise.torch.compiled.fast", "build"]
        own, theirs = str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [own, theirs]))
        try:
            _printed = tempfile.TemporaryFile()  # noqa: SIM115 (settle closes it)
            _builder = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": path, "REPRISE_DISABLE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=_printed,
                start_new_session=True,
            )
        except (OSError, TypeError) as error:  # an embedded interpreter has no name
            _failed = True
            without(
                f"the compiled tape is not built: {sys.executable!r} cannot be run "
                f"({guard.described(error)})"
            )


def library() -> Any:
    """The module, if it is built; None: not here, or not yet."""
    global _module, _failed
    if not _wanted():
        return None
    if _module is None:
        folder = FAST.cache_folder()
        path = None if folder is None else FAST.built(folder)
        if path is None:
            return None
        try:
            _module = _open(path)
        except Exception as error:
            _failed = True
            without(f"the compiled tape cannot be loaded ({guard.described(error)})")
    return _module


def load(
    unpack: Callable[[Any], Any],
    stale: Callable[[Any, int], Any],
    modified: Callable[[Any, int], Any],
) -> Any:
    """Returns the module with its gate installed; None if this torch has no gate. `unpack` takes
    what Python packed; `stale` and `modified` raise for a tensor that has another version: one that
    autograd saved, one that a recorded call reads."""
    module = library()
    if module is None:
        return None
    ready = module.setup(
        saved_hooks.unpacking(unpack),
        stale,
        modified,
        guard.caught,
        [name_of(func) for func in IGNORED],
    )
    if ready and _teach_higher_order_operators():
        return module
    without(f"torch {torch.__version__} has no dispatch key for the compiled tape")
    return None


def _open(path: Path) -> Any:
    loader = ExtensionFileLoader("reprise_fast", str(path))
    spec = spec_from_file_location("reprise_fast", path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _teach_higher_order_operators() -> bool:
    """They are dispatched in Python, where there are no fallbacks: without this one that runs while
    the gate is open would find no kernel for its key."""
    global _operators
    known = getattr(torch._ops, "_higher_order_ops", None)
    if known is None:
        return False
    if len(known) != _operators:
        key = torch._C._parse_dispatch_key(_KEY)
        for operator in known.values():
            operator.fallthrough(key)
        _operators = len(known)
    return True


def name_of(func: Any) -> tuple[str, str]:
    """Returns the name and the overload under which the dispatcher knows an operator."""
    name, overload = func._schema.name, func._schema.overload_name
    return name, overload


def alone() -> bool:
    """Nobody else's dispatch mode is on this thread, and none is forbidden."""
    python = torch._C.DispatchKey.Python
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(python)
    return not excluded and torch._C._len_torch_dispatch_stack() == 0


class Ground(modes.Mode):
    """Lies below the tape while its gate is open (compiled/fast.cc). No op comes here."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells torch that compiled code may run under this mode."""
        return True

    def op(self, op: modes.Op, types: Any) -> Any:
        return op.run() if PLAIN_TYPES.issuperset(types) else NotImplemented


if __name__ == "__main__":
    os.nice(10)  # a job may be running meanwhile
    sys.exit(FAST.main(sys.argv[1:]))
