# SPDX-License-Identifier: Apache-2.0
"""The run that ranks share which one launcher started on this machine.

    shared_run_id()      # of the ranks of one torchrun; None: this process is no rank of one

`torchrun train.py` is one job: one run, whatever the number of its ranks. They have the same
parent, whose id and start time name the run, with the attempt that torchrun counts. Where some
ranks are on other machines each one is a run of its own; so it is under `reprise run`, which names
the run itself (REPRISE_RUN_ID).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["shared_run_id", "uuid7_of"]


def shared_run_id() -> str | None:
    """From RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and the parent."""
    here = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if not all(text.isascii() and text.isdigit() for text in here):
        return None
    rank, world, local = map(int, here)
    if not (rank < world and world > 1 and local == world):
        return None
    parent = os.getppid()
    try:
        # The second field, the program's name, may hold blanks and brackets.
        stat = Path(f"/proc/{parent}/stat").read_text()
        ticks = int(stat[stat.rindex(")") + 2 :].split()[19])  # field 22: its start
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        milliseconds = boot * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    name = f"{boot} {parent} {ticks} {attempt}"
    digest = hashlib.sha256(name.encode()).digest()
    return uuid7_of(milliseconds, int.from_bytes(digest[:10], "big"))


def uuid7_of(milliseconds: int, rest: int) -> str:
    """A UUID version 7 of a time and 80 bits."""
    value = (milliseconds & (2**48 - 1)) << 80 | rest & (2**80 - 1)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    h = f"{value:032x}"
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
