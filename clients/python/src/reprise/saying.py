# SPDX-License-Identifier: Apache-2.0
"""One line to the person who trains, on standard error. Never in the way of training.

say("trains without a plan: ...")      # never raises
"""

from __future__ import annotations

import os
import sys

__all__ = ["because", "say"]


def say(text: str) -> None:
    """Writes `reprise: text`. A standard error that is full, closed, missing, or that nobody reads
    any more loses the line and nothing else."""
    line = f"reprise: {text}\n"
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
    return text.removeprefix("trains without a plan: ").partition("; trains ")[0]
