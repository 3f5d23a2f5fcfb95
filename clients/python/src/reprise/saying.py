# SPDX-License-Identifier: Apache-2.0
"""One line to the person who trains, on standard error. Never in the way of training.

say("training without a plan: ...")      # never raises
"""

from __future__ import annotations

import os
import sys

__all__ = ["because", "named", "say"]

# What faults of ours are called, and whether a line has carried that already. As many as a job that
# goes on after each of them could have; what comes later is written out each time.
_faults: dict[str, bool] = {}
_MOST_FAULTS = 64


def named(text: str) -> str:
    """`text`, which is what a fault is called: of the lines that carry it the first one has it, and
    the later ones say `as above`."""
    if len(_faults) < _MOST_FAULTS:
        _faults.setdefault(text, False)
    return text


def _once(line: str) -> str:
    for text in [text for text in tuple(_faults) if text in line]:
        if _faults[text]:
            line = line.replace(text, "as above")
        _faults[text] = True
    return line


def say(text: str) -> None:
    """Writes `reprise: text`. A standard error that is full, closed, missing, or that nobody reads
    any more loses the line and nothing else."""
    line = f"reprise: {_once(text)}\n"
    try:
        stream, own = sys.stderr, sys.__stderr__
        if stream is None:
            return
        if own is None or stream is not own:
            stream.write(line)  # the program's own, or that of a notebook
            stream.flush()
            return
        # Past Python's buffer: what could not be written would stay there, and the interpreter
        # would end with exit code 120 because of it.
        own.flush()
        data = line.encode(errors="backslashreplace")
        while data:
            data = data[os.write(own.fileno(), data) :]
    except Exception:
        return


def because(text: str) -> str:
    """The reason alone, of a line that also says that the job trains without a plan, or under an
    earlier one. For places that say that themselves: a report, a verdict."""
    return text.removeprefix("training without a plan: ").partition("; training continues ")[0]
