# SPDX-License-Identifier: Apache-2.0
"""Goes through a program as the tape will, with counts instead of tensors, before it is used.

    why = rehearse(program, step)         # "": every replay and every unpack finds what it needs

The tape lets go of a copy after its last use and of a recorded call after its last replay. That
something is let go too early must not be found out in a step: here it is found when the plan is
compiled. What this proves, for the step as captured:

- every replay finds its inputs, in the first life of a tensor or in a copy of the right version;
- every unpack of a given-up tensor finds its copy;
- so at every event all that is unpacked later can be made from what is there: by the replays that
  are still to come, whose inputs are there or made by others of them. It is this that lets the
  replayer make anything on demand when a backward leaves the captured order.

Linear in the arguments of all replays.
"""

from __future__ import annotations

from collections.abc import Sequence

from reprise.torch.capture.captured import CapturedOp, CapturedStep
from reprise.torch.tape.program import Program, Replay

__all__ = ["rehearse", "versions_needed"]


def versions_needed(ops: Sequence[CapturedOp]) -> list[dict[int, int]]:
    """By op: the version of every listed storage it reads, in base order."""
    current: dict[int, int] = {}
    needed = []
    for op in ops:
        needed.append({s.id: current[s.id] for s in op.reads if s.id >= 0})
        for s in op.writes:
            current[s.id] = 1
        for s in op.mutates:
            if s.id >= 0:
                current[s.id] += 1
    return needed


def rehearse(program: Program, step: CapturedStep) -> str:
    """Why the tape could not run the program to its end; empty: it can."""
    rehearsal = _Rehearsal(program, step)
    for slot, burst in zip(program.events, program.bursts, strict=True):
        for replay in burst:
            why = rehearsal.replay(replay)
            if why:
                return why
        why = rehearsal.unpack(slot) if program.slots[slot] else ""
        if why:
            return why
    return ""


class _Rehearsal:
    def __init__(self, program: Program, step: CapturedStep) -> None:
        self._program, self._step = program, step
        self._needed = versions_needed(step.ops)
        self._left = {row.op: row.replays for row in program.rows if row.replays}
        self._first = {row.op: list(row.first_life_reads) for row in program.rows if row.replays}
        self._cells = {s for row in program.rows for s in row.cells if s >= 0}
        self._version: dict[int, int] = {}  # of the copies that are present
        self._uses: dict[int, int] = {}
        self._firsts = list(program.firsts)  # unpacks that find what was saved

    def replay(self, replay: Replay) -> str:
        op = self._step.ops[replay.op]
        name = f"op {replay.op} {op.name}"
        if self._left.get(replay.op, 0) <= 0:
            return f"{name} is to be replayed, but its record was already released"
        self._left[replay.op] -= 1
        used = set()
        first = self._first[replay.op]
        own = {s.id for s in op.mutates}
        for position, storage in enumerate(op.arguments):
            if storage.id not in self._cells or first[position] < 0:
                continue  # held as long as the call is recorded
            if first[position] > 0 and storage.id not in own:
                first[position] -= 1
                continue
            why = self._find(storage.id, self._needed[replay.op][storage.id], name)
            if why:
                return why
            used.add(storage.id)
        if not own:
            for made, uses in replay.keep.items():
                if made not in self._cells:
                    return f"{name} makes storage {made}, which the tape cannot keep"
                self._version[made], self._uses[made] = 1, uses
        for storage_id in used:
            if storage_id in own:
                self._version[storage_id] += 1
            self._use(storage_id)
        return ""

    def unpack(self, slot: int) -> str:
        if self._firsts and self._firsts[slot] > 0:
            self._firsts[slot] -= 1
            return ""
        storage = self._step.slots[slot].storage.id
        why = self._find(storage, self._program.versions[slot], f"saved tensor {slot}")
        if not why:
            self._use(storage)
        return why

    def _find(self, storage: int, version: int, who: str) -> str:
        found = self._version.get(storage)
        if found == version:
            return ""
        held = "has been released" if found is None else f"is at version {found}"
        return f"{who} needs storage {storage} at version {version}, whose copy {held}"

    def _use(self, storage: int) -> None:
        self._uses[storage] -= 1
        if self._uses[storage] <= 0:
            self._uses.pop(storage)
            self._version.pop(storage)
