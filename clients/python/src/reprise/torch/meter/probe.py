# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the probe (compiled/probe.cc), the exact meter of the CPU's memory.

    python -m reprise.torch.meter.probe build       # ahead of time; prints where it is

Compiled in about a second (native.py), loaded by ctypes and never unloaded. Everything that can go
wrong is a `RepriseError` with one sentence; the caller then falls back to a meter in Python.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from functools import cache
from pathlib import Path

from reprise.errors import RepriseError
from reprise.torch.internals.native import SOURCES, Native

__all__ = ["PROBE", "build", "load"]

PROBE = Native(
    "probe",
    SOURCES / "probe.cc",
    "the memory probe",
    ("c10",),
    "to measure memory exactly",
)
build = PROBE.build

# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "reprise_probe_install": (ctypes.c_int, []),
    "reprise_probe_uninstall": (None, []),
    "reprise_probe_installed": (ctypes.c_int, []),
    "reprise_probe_live": (ctypes.c_int64, []),
    "reprise_probe_peak": (ctypes.c_int64, []),
    "reprise_probe_reset_peak": (None, []),
    "reprise_probe_blocks": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64]),
    "reprise_probe_events_begin": (None, [ctypes.c_void_p, ctypes.c_int64]),
    "reprise_probe_events_end": (None, []),
}


@cache
def load() -> ctypes.PyDLL:
    """The probe, built first where it is not in the cache."""
    folder = PROBE.cache_folder()
    if folder is None:
        # A library may be deleted once it is mapped.
        with tempfile.TemporaryDirectory(prefix="reprise-probe-") as temporary:
            return _open(build(Path(temporary)))
    return _open(build(folder))


def _open(path: Path) -> ctypes.PyDLL:
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise RepriseError(f"{path}: cannot be loaded ({error})") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


if __name__ == "__main__":
    sys.exit(PROBE.main(sys.argv[1:]))
