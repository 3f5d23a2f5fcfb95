# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the native engine of the tape (compiled/fast.cc).

    python -m reprise.torch.compiled.fast build        # builds ahead of time; prints the path

    module = load(unpack)                    # None: plans run in Python

It does the work of the Python engine at a lower cost: an op that is only compared and a tensor that
is only kept never reach the interpreter. A job does not wait for the compiler (about a minute of
processor time, once per torch): a missing engine is built beside the job, and tapes take it between
two steps when it is there. REPRISE_FAST=0 disables it. It also needs a dispatch key that nothing
else uses. The reason why plans run in Python is logged once, and `why_python` returns it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import IO, Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from reprise.base.saying import say
from reprise.torch.internals import ambient, guard, modes, saved_hooks
from reprise.torch.internals.native import SOURCES, Native
from reprise.torch.internals.ops import IGNORED, PLAIN_TYPES
from reprise.torch.internals.versions import careful

FAST = Native(
    "fast",
    "reprise.torch.compiled.fast",
    SOURCES / "fast.cc",
    "the native engine",
    ("c10", "torch_cpu", "torch_python"),
    "to run plans with less overhead",
    python=True,
    parts=tuple(sorted(SOURCES.glob("*.h"))),
)

_BUILDING = (
    "the native engine is being built (about a minute of processor time) and is used as soon as it "
    "is there"
)

_module: Any = None
_failed = False
_builder: subprocess.Popen[bytes] | None = None
_printed: IO[bytes] | None = None  # the output of the builder while it runs
_why = ""  # why plans run in Python
_operators = 0  # how many higher-order operators pass the gate's key on


def _wanted() -> bool:
    """Returns whether the native engine may be used: it is not disabled, this torch is not newer
    than those tested, and it has not failed."""
    return os.environ.get("REPRISE_FAST", "1") != "0" and not careful() and not _failed


def report_python_only(why: str) -> None:
    """Logs once why plans run in Python, and keeps the reason for the report."""
    global _why
    if why != _why:
        _why = why
        say(f"{why}. Plans run in Python, with more overhead")


def why_python() -> str:
    """Returns why plans run in Python; "" if they do not."""
    if os.environ.get("REPRISE_FAST", "1") == "0":
        return "REPRISE_FAST=0"
    return careful() or _why


def report_engine(found: bool) -> None:
    """Logs once that a program waits for the native engine, and once that it has got it."""
    global _why
    if found and _why == _BUILDING:
        _why = ""
        say("the native engine is built: plans run in it from this step on")
    elif not found and being_built():
        report_python_only(_BUILDING)


def being_built() -> bool:
    """Returns whether the compiler is at work. If it has ended without a result, its error is
    logged."""
    global _failed, _printed
    if _builder is None or _printed is None:
        return False
    if _builder.poll() is None:
        return True
    with _printed as printed:
        _printed = None
        if _builder.returncode == 0 and FAST.found() is not None:
            return False
        printed.seek(0)
        lines = printed.read().decode("utf-8", "replace").strip().splitlines()
    _failed = True
    report_python_only(
        f"the native engine is not built: {lines[-1] if lines else 'the compiler was ended'}"
    )
    return False


def prepare() -> None:
    """Starts the compiler if nothing is built yet. If that is not possible, this process runs its
    plans in Python, and the reason is logged."""
    global _builder, _failed, _printed
    if not _wanted() or _module is not None or _builder is not None:
        return
    if FAST.prebuilt() is not None:
        return
    folder = FAST.cache_folder()
    if folder is None:
        _failed = True
        report_python_only(
            "the native engine is not built: its folder reprise/fast in XDG_CACHE_HOME or ~/.cache "
            "cannot be written, or other users can write there"
        )
        return
    if FAST.built(folder) is None:
        command = [sys.executable, "-m", "reprise.torch.compiled.fast", "build"]
        own, theirs = str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [own, theirs]))
        try:
            _printed = tempfile.TemporaryFile()  # noqa: SIM115 (being_built closes it)
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
            report_python_only(
                f"the native engine is not built: {sys.executable!r} cannot be run "
                f"({guard.described(error)})"
            )


def library() -> Any:
    """Returns the module if it is built; None if it is not, or not yet."""
    global _module, _failed
    if not _wanted():
        return None
    if _module is None:
        path = FAST.found()
        if path is None:
            return None
        try:
            _module = _open(path)
        except Exception as error:
            _failed = True
            report_python_only(f"the native engine cannot be loaded ({guard.described(error)})")
    return _module


def load(unpack: Callable[[Any], Any]) -> Any:
    """Returns the module with its gate installed; None if it is not built or something else
    uses the gate's key. `unpack` returns the tensor of what Python packed."""
    module = library()
    if module is None:
        return None
    ready = module.setup(
        saved_hooks.unpacking(unpack),
        saved_hooks.refuse_stale,
        saved_hooks.refuse_modified,
        guard.caught,
        [name_of(func) for func in IGNORED],
        ambient.current,
        ambient.enter,
        partial(guard.surely, ambient.leave),
    )
    if ready:
        teach_higher_order_operators()
        return module
    report_python_only(f"torch {torch.__version__} has no dispatch key for the native engine")
    return None


def _open(path: Path) -> Any:
    spec = spec_from_file_location("reprise_fast", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def teach_higher_order_operators() -> None:
    """Registers a fallthrough for the gate's key with every higher-order operator, also with those
    that were imported since. They are dispatched in Python, without fallbacks: called while the
    gate is open or watches, they would find no kernel for its key."""
    global _operators
    known = torch._ops._higher_order_ops
    if len(known) != _operators:
        key = torch._C._parse_dispatch_key("Fake")  # kGate in compiled/below.h
        for operator in known.values():
            operator.fallthrough(key)
        _operators = len(known)


def name_of(func: Any) -> tuple[str, str]:
    """Returns the name and the overload under which the dispatcher knows an operator."""
    name, overload = func._schema.name, func._schema.overload_name
    return name, overload


def alone() -> bool:
    """Returns whether no dispatch mode is on this thread and modes are not excluded."""
    python = torch._C.DispatchKey.Python
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(python)
    return not excluded and torch._C._len_torch_dispatch_stack() == 0


class BelowGate(modes.Mode):
    """The mode below the tape while its gate is open (compiled/fast.cc). Ops pass the gate instead,
    so none reaches it. What torch notes of the modes that are on is noted for the tape's own mode,
    which is put on at once and taken off just before."""

    supports_higher_order_operators = True

    def __enter__(self) -> BelowGate:
        _push_mode(self)
        return self

    def __exit__(self, *error: object) -> None:
        _pop_mode()

    def op(self, op: modes.Op, types: Any) -> Any:
        return op.run() if PLAIN_TYPES.issuperset(types) else NotImplemented


if __name__ == "__main__":
    os.nice(10)  # a job may be running meanwhile
    sys.exit(FAST.main(sys.argv[1:]))
