# SPDX-License-Identifier: Apache-2.0
"""Which releases of PyTorch and Python Reprise is tested with, and what it does in others.

    why = careful()     # "" for a tested release, else one sentence

What a release lacks is found name by name (contracts.py), so a release that is not tested may work
as well as any. Its internals may also differ in a way that nothing here can detect. In a release
that is newer or older than those tested, or whose version cannot be read, plans run in Python
alone, without the native engine, and recomputed values are compared more often.
"""

from __future__ import annotations

import os
import platform
import re
import sys

import torch

from reprise.torch.internals.contracts import lost, missing

# On a CPU, and the limits of what runs without care. docs/install.md says what was run with each.
OLDEST_TORCH = (2, 8)
NEWEST_TORCH = (2, 15)
OLDEST_PYTHON = (3, 10)

# In the careful mode, a planned step is compared at least as often as every n-th.
CAREFUL_EVERY = 10


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def range_of() -> str:
    """Returns the releases of PyTorch that are tested, as "2.13" or "2.6 to 2.15"."""
    oldest, newest = _text(OLDEST_TORCH), _text(NEWEST_TORCH)
    return newest if oldest == newest else f"{oldest} to {newest}"


def _release(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _untested(release: tuple[int, int] | None) -> str:
    """Returns why a torch is not one of those tested; "" if it is."""
    here = f"torch {torch.__version__}"
    if release is None:
        return f"{here} does not say which release it is (tested: {range_of()})"
    if release > NEWEST_TORCH:
        return f"{here} is newer than {_text(NEWEST_TORCH)}, the newest tested"
    if release < OLDEST_TORCH:
        return f"{here} is older than {_text(OLDEST_TORCH)}, the oldest tested"
    return ""


def lacks() -> str:
    """Returns what this torch lacks and what is lost without it, as the end of a sentence; "" if it
    has everything that is used."""
    return f"; it does not have {'; '.join(lost())}" if lost() else ""


def careful() -> str:
    """Returns why this process is in the careful mode: its torch is none of those tested, or
    REPRISE_CAREFUL=1. "" if it is not; REPRISE_CAREFUL=0 switches the mode off."""
    wanted = os.environ.get("REPRISE_CAREFUL", "")
    if wanted == "0":
        return ""
    if wanted == "1":
        return "REPRISE_CAREFUL=1"
    return _untested(_release(torch.__version__))


def described() -> tuple[str, str, str]:
    """Returns health, finding and advice for `reprise doctor`."""
    python = platform.python_version()
    here = f"torch {torch.__version__}, Python {python}"
    why, untested = careful(), _untested(_release(torch.__version__))
    if missing():
        return "warning", f"{missing()}: no eager model is planned", "another release of torch"
    if why:
        return (
            "warning",
            f"{here}: careful mode, because {why}. Plans run in Python, and values are compared "
            f"at least every {CAREFUL_EVERY} planned steps{lacks()}",
            "nothing, if that is fast enough; REPRISE_CAREFUL=0 switches the mode off",
        )
    if untested:
        off = "the careful mode is off (REPRISE_CAREFUL=0)"
        return "warning", f"{here}: {untested}; {off}{lacks()}", ""
    if sys.version_info < OLDEST_PYTHON:
        return "warning", f"{here}: Python {_text(OLDEST_PYTHON)} or newer is needed", ""
    return "ok", f"{here}: torch {range_of()} is tested{lacks()}", ""
