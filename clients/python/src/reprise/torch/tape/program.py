# SPDX-License-Identifier: Apache-2.0
"""What the tape does in one step, as plain data: which ops of the forward are recorded, which saved
tensors are given up, and which calls are replayed before the backward needs them.

compile_plan.py makes a `Program` of a plan, rehearsal.py checks it, and tape_run.py runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Burst", "Program", "Replay", "Row"]


@dataclass(slots=True)
class Row:
    """What the tape does with one op of the root's forward."""

    func: Any
    op: int
    plain: bool = True  # nothing to do but to run it
    writes: bool = False  # its schema writes an argument
    seeded: bool = False
    side: bool = False  # the captured step ran it on another stream than the one it began on
    covered: bool = False  # the captured step ran it under saved-tensor hooks of the program
    short: bool = False  # a replay takes the shortcut there is (shortcut.py)
    replays: int = 0  # 0: not recorded
    # By position among the outputs: the storage that becomes a cell, or -1.
    cells: tuple[int, ...] = ()
    # By tensor argument: replays that read its first life; -1: not planned, hold it.
    first_life_reads: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Replay:
    """One more run of an op. `keep`: storage -> uses of the life that begins here."""

    op: int
    keep: dict[int, int]


Burst = tuple[Replay, ...]


@dataclass(slots=True, frozen=True)
class Program:
    """What the tape does in one step."""

    rows: tuple[Row, ...]
    regions: tuple[tuple[int, int], ...]  # rows of every forward call of the root
    slots: tuple[bool, ...]  # True: given up, made again at its unpack
    # By slot: the version of its storage that the unpack finds in memory. Later than the one that
    # was packed where another part of the storage was written in between (the gates of an LSTM).
    versions: tuple[int, ...]
    events: tuple[int, ...]  # slots in the order in which they are unpacked
    event_ops: tuple[int, ...]  # by event: the op that it stands before
    bursts: tuple[Burst, ...]  # by event
    replays: int
    # By slot: the row before which it is packed, as an input of that call or an output of the one
    # before it. Not known, in a program written by hand: empty.
    windows: tuple[int, ...] = ()
    outputs: frozenset[int] = frozenset()  # slots that are outputs of the call before
    kept: tuple[bool, ...] = ()  # by event: its pass of backward keeps the graph for another
    # By slot that is given up: how many unpacks find it as it was saved, and the last of them gives
    # it up, as where two backward passes go through one graph. Empty: it is given up when packed.
    firsts: tuple[int, ...] = ()
    # The storages of the model's parameters, if replays read gathered ones that are made of them.
    sources: frozenset[int] = frozenset()
    wrapped: bool = False  # some discarded tensor is the part of a wrapper, as of a DTensor

    @property
    def dropped(self) -> int:
        """How many saved tensors are given up."""
        return sum(self.slots)
