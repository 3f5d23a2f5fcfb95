# SPDX-License-Identifier: Apache-2.0
"""The id of the run that the ranks of one launcher on this machine share.

    shared_run_id()      # of the ranks of one torchrun; None if this process is not such a rank

`torchrun train.py` is one job and one run, however many ranks it has. The ranks have the same
parent process, whose id and start time identify the run, together with torchrun's restart count. If
some ranks are on other machines, each rank is a run of its own; so it is under `reprise run`, which
sets the id itself (REPRISE_RUN_ID).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def shared_run_id() -> str | None:
    """Returns the run id that the ranks of this machine share, made from RANK, WORLD_SIZE,
    LOCAL_WORLD_SIZE and the parent process; None if this process is not a rank whose job is all on
    this machine."""
    here = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    if not all(text.isascii() and text.isdigit() for text in here):
        return None
    rank, world, local = map(int, here)
    if not (rank < world and world > 1 and local == world):
        return None
    parent = os.getppid()
    try:
        # The second field, the program's name, may contain blanks and brackets.
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
    """Returns a version 7 UUID made of a time and 80 bits."""
    value = (milliseconds & (2**48 - 1)) << 80 | rest & (2**80 - 1)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    h = f"{value:032x}"
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
