# SPDX-License-Identifier: Apache-2.0
"""The frames that run, those of the program among them, and tracebacks of its errors without those
of this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from traceback import clear_frames
from types import FrameType, TracebackType

import torch

# The folder of this package, which is not imported as a whole: it imports this.
PACKAGE = os.path.join(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")), "")
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_NOT_THE_PROGRAM = PACKAGE, _TORCH
# Causes of an error that are looked at.
CAUSES = 8


def frames() -> Iterator[FrameType]:
    """Yields the frames that run on this thread, from the caller's outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def program_line() -> str:
    """Returns the innermost line that runs and is neither torch's nor this package's, such as
    "model.py:212"; "" if there is none, as in a thread of autograd."""
    found = ((_name(frame.f_code.co_filename), frame) for frame in frames())
    return next((f"{name}:{frame.f_lineno}" for name, frame in found if name), "")


def program_call() -> tuple[int, int]:
    """Returns what tells the call of the program that is being run from the calls before it, as
    long as none of its functions returns; zeros if there is none."""
    of_program = (frame for frame in frames() if _name(frame.f_code.co_filename))
    return next(((id(frame), frame.f_lasti) for frame in of_program), (0, 0))


def without_ours(error: BaseException | None, trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback of an error that nobody has caught as its user reads it, and makes it
    that of the error; likewise those of what has caused it."""
    shown = _shown(trace)
    causes = CAUSES
    while error is not None and causes:
        error.__traceback__ = shown if error.__traceback__ is trace else _shown(error.__traceback__)
        error, causes = error.__cause__ or error.__context__, causes - 1
    return shown


def let_go(trace: TracebackType | None) -> None:
    """Empties the functions of a traceback, which have all ended."""
    clear_frames(trace)
    while trace is not None:
        # Until Python 3.12 a frame whose variables somebody has looked at keeps what they were,
        # and looks again when it is asked.
        _ = trace.tb_frame.f_locals
        trace = trace.tb_next


def _shown(trace: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without our frames; as it is if all are ours."""
    entries: list[TracebackType] = []
    entry = trace
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
            entries.append(entry)
        entry = entry.tb_next
    made: TracebackType | None = None
    for entry in reversed(entries):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made or trace


@lru_cache(maxsize=4096)
def _name(path: str) -> str:
    """Returns the name of a file of the program; "" for files of others and for generated code."""
    if path.startswith("<") and path != "<stdin>":
        return ""
    # As it is: the current folder, which a relative path is below, may be gone.
    return "" if path.startswith(_NOT_THE_PROGRAM) else os.path.basename(path)
