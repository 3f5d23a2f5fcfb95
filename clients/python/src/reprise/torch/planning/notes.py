# SPDX-License-Identifier: Apache-2.0
"""What one start of a job leaves for the next one: that memory ran out, and how.

    notes = Notes(model, device)
    notes.died                  # an earlier start ran out of memory before it had a plan
    notes.tighter               # budgets are to be multiplied by this
    notes.begins(); notes.fits(); notes.ran_out_unplanned(); notes.ran_out()

A process that the system kills for its memory cannot say so. So a note is written when the first
step begins and taken away when a step is captured or the program ends in another way. One that is
found, of a process that is gone, means that it was killed; that this was for its memory, only where
the system's count of such kills has grown since. Kept in `$XDG_STATE_HOME/reprise/starts`, one file
per program, model and size; a disk that does not want it costs nothing but the note.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["Notes"]

TIGHTER, TIGHTEST = 0.9, 0.5

# Counts the processes that the kernel has killed because memory ran out, those of control groups
# included.
KILLS = Path("/proc/vmstat")


class Notes:
    """Notes of earlier starts about one model of one program."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        sizes = [tuple(p.shape) for p in model.parameters()]
        which = (_program(), type(model).__qualname__, str(device.type), sizes)
        name = hashlib.sha256(repr(which).encode()).hexdigest()[:16]
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        self._path = Path(base) / "reprise" / "starts" / f"{name}.json"
        self._told = False
        found = self._read()
        tighter = found.get("tighter", 1.0)
        good = isinstance(tighter, float) and TIGHTEST <= tighter <= 1
        self.tighter: float = tighter if good else 1.0
        pid = found.get("unplanned_of")
        gone = isinstance(pid, int) and pid > 0 and pid != os.getpid() and not _alive(pid)
        kills, now = found.get("kills"), _kills()
        killed = isinstance(kills, int) and now is not None and now > kills
        self.died = gone and (killed or found.get("out_of_memory") is True)

    def begins(self) -> None:
        """Notes that the first step is about to run."""
        self._write(unplanned_of=os.getpid(), kills=_kills(), out_of_memory=False)

    def fits(self) -> None:
        """Notes that a step has been captured, or that the program ends for another reason than
        memory."""
        self._write(unplanned_of=0, kills=None, out_of_memory=False)

    def ran_out_unplanned(self) -> None:
        """Notes that memory ran out before there was a plan."""
        self._write(out_of_memory=True)

    def ran_out(self) -> None:
        """Notes that memory ran out where nothing could run again: the next start asks for less."""
        if self._told:
            return  # once per start
        self._told = True
        self.tighter = max(TIGHTEST, self.tighter * TIGHTER)
        self._write(tighter=self.tighter)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, **changes: Any) -> None:
        text = {k: v for k, v in {**self._read(), **changes}.items() if v or k == "kills"}
        text = {k: v for k, v in text.items() if v is not None}
        try:
            if text:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                made = self._path.with_suffix(f".{os.getpid()}")
                made.write_text(json.dumps(text))
                made.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError:
            return


def _program() -> str:
    """Returns the path of the program; as it was called if the current folder is gone."""
    name = sys.argv[0] if sys.argv else ""
    try:
        return os.path.abspath(name)
    except OSError:
        return name


def _kills() -> int | None:
    """Returns how many processes the kernel has killed for lack of memory since it was started;
    None if it does not say."""
    try:
        lines = KILLS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
