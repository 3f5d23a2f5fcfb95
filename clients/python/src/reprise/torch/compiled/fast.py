# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the compiled half of the tape (compiled/fast.cc).

    python -m reprise.torch.compiled.fast build        # ahead of time; prints where it is

    Compiled.of(program, unpack, stale)       # None: this program runs in Python alone

The tape is complete in Python; this is the same, for less: an op that is only looked at and a
tensor that is only kept never reach the interpreter. A job does not wait for the compiler (some
ten seconds, once per torch): what is not built is built beside the job, and used from the next
program of this process on. REPRISE_FAST=0 does without, and so does a torch without the dispatch
key it needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from reprise.saying import say
from reprise.torch.ground import guard, modes, saved_hooks
from reprise.torch.ground.native import SOURCES, Native
from reprise.torch.ground.ops import IGNORED, PLAIN_TYPES, statistics_of, trains_at

if TYPE_CHECKING:
    from reprise.torch.tape.program import Program, Row

__all__ = ["FAST", "Compiled", "Ground", "Track", "alone", "library", "load", "prepare"]

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
_operators = 0  # higher-order ones that know of the gate's key


class Track:
    """How far a step has come; what compiled/track.h has under the same name."""

    __slots__ = ("armed", "cursor", "handed", "keeps", "next", "safe", "slot", "task")

    def __init__(self) -> None:
        self.armed = True
        self.safe = False
        self.handed = True  # records are in Python
        self.next = 0  # row
        self.slot = 0
        self.cursor = 0  # event
        self.task = -1  # autograd's graph task
        self.keeps = False  # it keeps its graph for another backward


def _wanted() -> bool:
    return os.environ.get("REPRISE_FAST", "1") != "0" and not _failed


def prepare() -> None:
    """Starts the compiler where nothing is built yet. Where that is not possible, this process runs
    its plans in Python alone, and says so."""
    global _builder, _failed
    folder = FAST.cache_folder()
    if not _wanted() or _module is not None or _builder is not None or folder is None:
        return
    if FAST.built(folder) is None:
        command = [sys.executable, "-m", "reprise.torch.compiled.fast", "build"]
        own, theirs = str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, [own, theirs]))
        try:
            _builder = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": path, "REPRISE_DISABLE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, TypeError) as error:  # an embedded interpreter has no name
            _failed = True
            say(
                f"the compiled tape is not built: {sys.executable!r} cannot be run "
                f"({guard.described(error)}). Plans run in Python, with more overhead"
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
            say(f"the compiled tape cannot be loaded ({guard.described(error)}): runs in Python")
    return _module


def load(unpack: Callable[[Any], Any], stale: Callable[[Any, int], Any]) -> Any:
    """The same with the gate in place; None: it has none here."""
    module = library()
    if module is None or not module.setup(
        saved_hooks.unpacking(unpack), stale, guard.caught, [_name(func) for func in IGNORED]
    ):
        return None
    return module if _teach_higher_order_operators() else None


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


def _name(func: Any) -> tuple[str, str]:
    """As the dispatcher knows it."""
    name, overload = func._schema.name, func._schema.overload_name
    return name, overload


def _hooked(program: Program) -> set[int]:
    """Windows that go through the hooks: something of them is given up, or is unpacked where
    something is replayed. Or is an output of its call: without a hook autograd would make a copy
    of it, and that comes to the dispatch mode past the gate."""
    wanted = {slot for slot, given_up in enumerate(program.slots) if given_up}
    wanted |= program.outputs
    wanted.update(s for s, burst in zip(program.events, program.bursts, strict=True) if burst)
    return {program.windows[slot] for slot in wanted}


def thin(program: Program) -> Program:
    """The program with the unpacks of hooked windows only."""
    if not program.windows:
        return program
    hooked = _hooked(program)
    kept = [n for n, slot in enumerate(program.events) if program.windows[slot] in hooked]
    return replace(
        program,
        events=tuple(program.events[n] for n in kept),
        event_ops=tuple(program.event_ops[n] for n in kept),
        bursts=tuple(program.bursts[n] for n in kept),
        kept=tuple(program.kept[n] for n in kept if program.kept),
    )


def _windows(program: Program) -> tuple[bytes, array[int]]:
    """By window: hooked or not, and its first slot."""
    if not program.windows:
        return b"", array("q")
    hooked = _hooked(program)
    windows = range(len(program.rows) + 1)
    first = array("q", (bisect_left(program.windows, window) for window in windows))
    return bytes(window in hooked for window in windows), first


def sheet_of(fast: Any, program: Program) -> Any:
    """The program as the gate reads it."""
    if any(not isinstance(row.func, torch._ops.OpOverload) for row in program.rows):
        return None
    rows = [_name(row.func) for row in program.rows]
    specials = [None if row.plain else _special(row) for row in program.rows]
    bursts = [
        tuple((replay.op, tuple(replay.keep.items())) for replay in burst)
        for burst in program.bursts
    ]
    quiet = bytes(not burst for burst in program.bursts)
    try:
        return fast.Sheet(
            rows,
            specials,
            bursts,
            bytes(program.slots),
            array("q", program.events),
            quiet,
            *_windows(program),
            array("q", (row.op for row in program.rows)),
            array("q", program.event_ops),
            array("q", program.versions),
            array("q", program.firsts),
        )
    except LookupError:
        return None


def _special(row: Row) -> tuple[Any, ...]:
    """A row that is recorded, or writes."""
    statistics, without = statistics_of(row.func)
    return (
        row.replays,
        row.writes,
        row.seeded,
        row.short,
        trains_at(row.func),
        statistics,
        None if without is None else _name(without),
        row.cells,
        row.first_life_reads,
    )


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
        """What is compiled stays compiled."""
        return True

    def op(self, op: modes.Op, types: Any) -> Any:
        return op.run() if PLAIN_TYPES.issuperset(types) else NotImplemented


class Compiled:
    """A program as fast.cc runs it."""

    def __init__(self, module: Any, program: Program, sheet: Any) -> None:
        self.module = module
        self.program = program  # with what still comes to Python
        self._sheet = sheet

    @classmethod
    def of(
        cls, program: Program, unpack: Callable[[Any], Any], stale: Callable[[Any, int], Any]
    ) -> Compiled | None:
        """None: nothing compiled is here, or it cannot run this program."""
        module = load(unpack, stale) if program.replays else None
        if module is None:
            return None
        thinned = thin(program)
        sheet = sheet_of(module, thinned)
        return None if sheet is None else cls(module, thinned, sheet)

    def track(self, run: Any, here: int = 0, device: torch.device | None = None) -> Any:
        """The state of a step, at its beginning. `device`: a GPU, whose streams are looked at."""
        made = self.module.Track(self._sheet, run)
        made.here = here
        if device is not None:
            made.on(torch.cuda.current_device() if device.index is None else device.index)
        return made


if __name__ == "__main__":
    os.nice(10)  # a job may be running meanwhile
    sys.exit(FAST.main(sys.argv[1:]))
