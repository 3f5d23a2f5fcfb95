# SPDX-License-Identifier: Apache-2.0
"""The line and the call of the program that is being run, below torch and this package."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

import torch

from reprise.torch.internals.traces import PACKAGE

__all__ = ["program_call", "program_line"]

_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_NOT_THE_PROGRAM = PACKAGE, _TORCH


def program_line() -> str:
    """Returns the innermost line of the caller that is neither torch's nor this package's, such as
    "model.py:212"; "" if there is none, as in a thread of autograd."""
    frame = sys._getframe(1)
    while frame is not None:
        name = _name(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def program_call() -> tuple[int, int]:
    """Returns what tells the call of the program that is being run from the calls before it, as
    long as none of its functions returns; zeros if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if _name(frame.f_code.co_filename):
            return id(frame), frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return 0, 0


@lru_cache(maxsize=4096)
def _name(path: str) -> str:
    """Returns the name of a file of the program; "" for files of others and for generated code."""
    if path.startswith("<") and path != "<stdin>":
        return ""
    # As it is: the current folder, which a relative path is below, may be gone.
    return "" if path.startswith(_NOT_THE_PROGRAM) else os.path.basename(path)
