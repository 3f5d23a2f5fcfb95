# SPDX-License-Identifier: Apache-2.0
"""One line to the person who trains, on standard error. Never in the way of training.

say("trains without a plan: ...")      # never raises
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["say"]


def say(text: str) -> None:
    """Writes `reprise: text`. A standard error that is full, closed, missing, or that nobody reads
    any more loses the line and nothing else."""
    line = f"reprise: {text}\n"
    try:
        stream: TextIO | None = sys.stderr
        if stream is None:
            return
        if stream is not sys.__stderr__:
            stream.write(line)  # the program's own, or that of a notebook
            stream.flush()
            return
        # Past Python's buffer: what could not be written would stay there, and the interpreter
        # would end with exit code 120 because of it.
        stream.flush()
        data = line.encode(errors="backslashreplace")
        while data:
            data = data[os.write(stream.fileno(), data) :]
    except Exception:
        return
