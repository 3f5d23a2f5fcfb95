# SPDX-License-Identifier: Apache-2.0
"""Finds and runs the programs that come with the package: `reprise` and `reprised`.

A wheel has them in `reprise/bin`, a checkout in `build/bin`. The console scripts `reprise` and
`reprised` of an installation replace their process by the program, so that signals, exit code,
standard streams and speed are the program's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from reprise.base.errors import RepriseError

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """Returns the root of the source tree that contains this package; None in an installation."""
    # In a checkout this file is clients/python/src/reprise/agent/bundled.py.
    if len(PACKAGE.parents) > 3:
        root = PACKAGE.parents[3]
        if (root / "profiler" / "include" / "reprise_agent.h").is_file():
            return root
    return None


def places(installed: str, built: str) -> list[Path]:
    """Returns the folders where a part may be: of the package, and of the build of the checkout."""
    root = checkout()
    return [PACKAGE / installed, *([root / "build" / built] if root is not None else [])]


def program(name: str) -> Path | None:
    """Returns the path of a program, in the package or in the build of the checkout; None if there
    is none."""
    found = places("bin", "bin")
    return next((path / name for path in found if os.access(path / name, os.X_OK)), None)


def command() -> NoReturn:
    """Runs the bundled program in the place of this process, as the console script `reprise`.
    Raises SystemExit if there is none."""
    _become("reprise")


def daemon() -> NoReturn:
    """Runs the bundled daemon in the place of this process, as the console script `reprised`.
    Raises SystemExit if there is none."""
    _become("reprised")


def _become(name: str) -> NoReturn:
    """Replaces this process by a bundled program with the same arguments. Raises SystemExit if
    there is none."""
    path = program(name)
    if path is None:
        error = RepriseError(
            f"{name}: this installation has no such program (looked in {PACKAGE / 'bin'}); "
            "install a wheel for this platform, or run scripts/build in a checkout"
        )
        print(f"reprise: {error}", file=sys.stderr)
        raise SystemExit(1)
    # `reprise doctor` asks this interpreter, which has the package, unless told otherwise.
    os.environ.setdefault("REPRISE_PYTHON", sys.executable)
    os.execv(path, [name, *sys.argv[1:]])
