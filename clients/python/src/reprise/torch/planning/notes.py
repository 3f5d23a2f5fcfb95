# SPDX-License-Identifier: Apache-2.0
"""What one start of a job leaves for the next one: that memory ran out, and how.

    notes = Notes(model, device)
    notes.tighter               # budgets are to be multiplied by this
    notes.ran_out()             # memory ran out where nothing could run again

Kept in `$XDG_STATE_HOME/reprise/starts`, one file per program, model and size; a disk that does not
want it costs nothing but the note.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

TIGHTER, TIGHTEST = 0.9, 0.5


class Notes:
    """Notes of earlier starts about one model of one program."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        sizes = [tuple(p.shape) for p in model.parameters()]
        which = (_program(), type(model).__qualname__, str(device.type), sizes)
        name = hashlib.sha256(repr(which).encode()).hexdigest()[:16]
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        self._path = Path(base) / "reprise" / "starts" / f"{name}.json"
        self._told = False
        self.tighter = self._read()

    def ran_out(self) -> None:
        """Notes that memory ran out where nothing could run again: the next start asks for less."""
        if self._told:
            return  # once per start
        self._told = True
        self.tighter = max(TIGHTEST, self.tighter * TIGHTER)
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = self._path.with_suffix(f".{os.getpid()}")
            made.write_text(json.dumps({"tighter": self.tighter}))
            made.replace(self._path)

    def _read(self) -> float:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return 1.0
        tighter = found.get("tighter") if isinstance(found, dict) else None
        return tighter if isinstance(tighter, float) and TIGHTEST <= tighter <= 1 else 1.0


def _program() -> str:
    """Returns the path of the program; as it was called if the current folder is gone."""
    name = sys.argv[0] if sys.argv else ""
    try:
        return os.path.abspath(name)
    except OSError:
        return name
