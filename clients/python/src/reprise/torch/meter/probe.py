# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the probe (compiled/probe.cc), the exact meter of CPU memory.

    python -m reprise.torch.meter.probe build       # builds ahead of time; prints the path

The probe compiles in about a second (native.py), is loaded with ctypes and never unloaded. Every
failure is a `RepriseError` with one sentence; the caller then uses the meter in Python.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from functools import cache
from pathlib import Path

from reprise.base.errors import RepriseError
from reprise.torch.internals.native import SOURCES, Native

PROBE = Native(
    "probe",
    "reprise.torch.meter.probe",
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
    "reprise_probe_wait_above": (ctypes.c_int64, [ctypes.c_int64, ctypes.c_int64]),
    "reprise_probe_blocks": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64]),
    "reprise_probe_events_begin": (None, [ctypes.c_void_p, ctypes.c_int64]),
    "reprise_probe_events_end": (None, []),
}


@cache
def load() -> ctypes.PyDLL:
    """Returns the probe, and builds it first if it neither came with the package nor is in the
    cache. Raises RepriseError if that fails."""
    found = PROBE.found()
    if found is not None:
        return _open(found)
    folder = PROBE.cache_folder()
    if folder is None:
        # A library may be deleted once it is mapped.
        with tempfile.TemporaryDirectory(prefix="reprise-probe-") as temporary:
            return _open(build(Path(temporary)))
    return _open(build(folder))


def _open(path: Path) -> ctypes.PyDLL:
    """Loads the probe from `path` and declares its functions. Raises RepriseError if it cannot be
    loaded."""
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
