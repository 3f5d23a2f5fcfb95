# SPDX-License-Identifier: Apache-2.0
"""Keeps what the executor costs on this machine on disk, from one start of a job to the next.

    kept = KeptCosts("compiled")          # which tape was measured
    kept.find(4096)                       # the figures for that many bytes, or None
    kept.keep(4096, figures)

There is one file in `$XDG_CACHE_HOME/reprise/costs` per processor, version of torch and of Python,
and source of the tape, because the figures change with each of these. A file that cannot be read,
or has unexpected content, is ignored; if a file cannot be written, every start measures again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from pathlib import Path

import torch

_FOLDER = Path(__file__).parent


class KeptCosts:
    """The stored costs of one tape on one machine. `which` names the tape."""

    def __init__(self, which: str) -> None:
        facts = (which, _processor(), torch.__version__, sys.version, _source())
        name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._path = Path(base) / "reprise" / "costs" / f"{name}.json"

    def find(self, touched_bytes: int) -> dict[str, int] | None:
        """Returns the stored figures for this many bytes; None if there are none."""
        found = self._read().get(str(touched_bytes))
        if not isinstance(found, dict):
            return None
        good = all(type(v) is int and 0 <= v < 1 << 40 for v in found.values())
        return found if good else None

    def keep(self, touched_bytes: int, figures: dict[str, int]) -> None:
        """Stores figures for the next start of a job. Does nothing if that fails."""
        text = {**self._read(), str(touched_bytes): figures}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = self._path.with_suffix(f".{os.getpid()}")
            made.write_text(json.dumps(text))
            made.replace(self._path)
        except OSError:
            return

    def _read(self) -> dict[str, object]:
        """Returns the content of the file; empty if there is none or it is damaged."""
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else f"{platform.machine()} {platform.processor()}"


def _source() -> str:
    """Returns a digest of all code that the measurement runs."""
    digest = hashlib.sha256()
    for path in sorted((*_FOLDER.glob("*.py"), *_FOLDER.parent.glob("compiled/*"))):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
