# SPDX-License-Identifier: Apache-2.0
"""The peak of a joint graph under tags, as a partitioner carries them out.

The forward runs as it is and keeps what is not recomputed. Before the first op of the backward that
needs something absent, everything missing for it runs again in the order of the forward, and stays
until its last reader. That is what the planner's executor `joint` is (planner/model/evaluate.h).
Where it finds no plan of that kind, a plan for an executor that can do more may still fit when it
is carried out this way; this says whether it does. Linear in the graph.
"""

from __future__ import annotations

from typing import Any

__all__ = ["peak_under"]


def peak_under(message: dict[str, Any], again: set[int]) -> int:
    """Bytes at the peak when the ops `again` are recomputed and nothing else."""
    ops = message["ops"]
    made_by = {s: o for o, op in enumerate(ops) for s in op["writes"]}
    dropped = {s for o in again for s in ops[o]["writes"]}
    execs: list[int] = []
    back: set[int] = set()  # made again
    for number, op in enumerate(ops):
        if op["phase"] == "PHASE_BACKWARD":
            missing: set[int] = set()
            todo = [s for s in op["reads"] if s in dropped and s not in back]
            while todo:
                maker = made_by[todo.pop()]
                if maker not in missing:
                    missing.add(maker)
                    todo += [s for s in ops[maker]["reads"] if s in dropped and s not in back]
            execs += sorted(missing)
            back |= {s for o in missing for s in ops[o]["writes"]}
        execs.append(number)
    sizes = [s["bytes"] for s in message["storages"]]
    change = [0] * (len(execs) + 1)
    required = set(message["required"])
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    ran: set[int] = set()

    def ends(storage: int, at: int) -> None:
        change[born[storage]] += sizes[storage]
        change[at + 1] -= sizes[storage]

    for at, number in enumerate(execs):
        for storage in ops[number]["writes"]:
            if number in ran:
                ends(storage, last[storage])
            born[storage] = last[storage] = at
        for storage in ops[number]["reads"]:
            last[storage] = at
        ran.add(number)
    for storage, at in last.items():
        ends(storage, len(execs) - 1 if storage in required else at)
    live = peak = message["static_bytes"]
    for number, more in zip(execs, change, strict=False):
        live += more
        peak = max(peak, live + ops[number]["workspace_bytes"])
    return int(peak)
