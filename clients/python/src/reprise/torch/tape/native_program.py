# SPDX-License-Identifier: Apache-2.0
"""Converts a program for the native engine of the tape (compiled/fast.cc).

    Compiled.of(program, unpack)      # None: this program runs in Python

The native engine reads a program once, as arrays of numbers (its Sheet), and then follows a step
without calling Python until something differs from the captured step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from reprise.torch.compiled import fast
from reprise.torch.internals.ops import statistics_of, trains_at
from reprise.torch.tape.program import Program, Row


def _hooked(program: Program) -> set[int]:
    """Returns the windows whose saved tensors go through the hooks: those in which a tensor is
    discarded, or unpacked at an event with replays or copies, or saved as an output of its call.
    Without a hook autograd would make a copy of such an output, and that copy would reach the
    dispatch mode without passing the gate. Also those next to an op that runs under hooks of the
    program: below these, ours can be neither set nor removed."""
    wanted = {slot for slot, given_up in enumerate(program.slots) if given_up}
    wanted |= program.outputs
    wanted.update(event.slot for event in program.events if event.parts)
    hooked = {program.windows[slot] for slot in wanted}
    hooked.update(
        n + after for n, row in enumerate(program.rows) if row.covered for after in (0, 1)
    )
    return hooked


def thin(program: Program) -> Program:
    """Returns the program with only the unpacks of hooked windows."""
    if not program.windows:
        return program
    hooked = _hooked(program)
    events = tuple(e for e in program.events if program.windows[e.slot] in hooked)
    return replace(program, events=events)


def _windows(program: Program) -> tuple[list[bool], list[int]]:
    """Returns by window whether it is hooked, and its first slot."""
    if not program.windows:
        return [], []
    hooked = _hooked(program)
    windows = range(len(program.rows) + 1)
    first = [bisect_left(program.windows, window) for window in windows]
    return [window in hooked for window in windows], first


def sheet_of(module: Any, program: Program) -> Any:
    """Returns the program as the gate reads it; None if the native engine does not know one of its
    ops."""
    others = [row for row in program.rows if not isinstance(row.func, torch._ops.OpOverload)]
    if others:
        fast.report_python_only(
            f"the native engine does not know op {others[0].op}, {others[0].func}"
        )
        return None
    names = [fast.name_of(row.func) for row in program.rows]
    # Of a program that copies, Python sees what is written: it might be what is copied.
    parks = any(row.parked for row in program.rows)
    facts = [None if row.plain else _facts(row, parks) for row in program.rows]
    try:  # the module raises LookupError where torch does not know an operator by its name
        return module.sheet(program, names, facts, *_windows(program))
    except LookupError as error:
        fast.report_python_only(f"the native engine does not know an op of this step ({error})")
        return None


def _facts(row: Row, parks: bool) -> tuple[Any, ...]:
    """Returns what the native engine must know of a row that is recorded, writes, or is next to a
    copy to the host, besides the row itself; `parks`: the program makes such copies."""
    statistics, without = statistics_of(row.func)
    return (
        trains_at(row.func),
        statistics,
        None if without is None else fast.name_of(without),
        bool(row.parked or row.sent or (row.writes and parks)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A program in the form in which the native engine (fast.cc) runs it."""

    module: Any
    program: Program  # with the unpacks that go through the hooks
    _sheet: Any

    @classmethod
    def of(cls, program: Program, unpack: Callable[[Any], Any]) -> Compiled | None:
        """Returns the converted program; None if there is no native engine or it cannot run this
        program."""
        module = fast.load(unpack) if program.replays else None
        if module is None:
            if program.replays:
                fast.report_engine(found=False)
            return None
        thinned = thin(program)
        sheet = sheet_of(module, thinned)
        if sheet is None:
            return None
        fast.report_engine(found=True)
        return cls(module, thinned, sheet)

    def track(self, run: Any, here: int = 0, device: torch.device | None = None) -> Any:
        """Returns the state of a new step. `device` is a GPU whose streams are checked."""
        fast.teach_higher_order_operators()
        made = self.module.Track(self._sheet, run)
        made.here = here
        if device is not None:
            made.on(torch.cuda.current_device() if device.index is None else device.index)
        return made
