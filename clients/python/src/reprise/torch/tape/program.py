# SPDX-License-Identifier: Apache-2.0
"""What the tape does in one step, as plain data: which ops of the forward are recorded, which saved
tensors are given up, and which calls are replayed before the backward needs them.

compile_plan.py makes a `Program` of a plan, `rehearse` checks it, and tape_run.py runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reprise.base.errors import RepriseError
from reprise.torch.capture.captured import CapturedOp, CapturedStep


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
    # By position among the outputs: the storage that is sent to host memory, or -1.
    parked: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()  # storages that are let go right before it, once they are there
    # By position among the outputs: the storage that becomes a cell, or -1.
    cells: tuple[int, ...] = ()
    # By tensor argument: replays that read its first life; -1: not planned, hold it.
    first_life_reads: tuple[int, ...] = ()


class PlanRejected(RepriseError):
    """The tape cannot run this plan; nothing was changed."""


# From here on, the op of a replay is a storage that comes back from host memory (parked.py).
FETCHED = 1 << 40


class Place(NamedTuple):
    """A storage that is sent to host memory: where it is there, how often it is fetched, the op
    after which it is sent, and how often it was written in place until then. Of its versions only
    the last one is known to the tape, as its first."""

    at: int
    bytes: int
    fetches: int
    maker: int
    written: int = 0


class Sent(NamedTuple):
    """A storage that was sent is let go."""

    storage: int


class Fetch(NamedTuple):
    """A storage begins to come back."""

    storage: int


@dataclass(slots=True, frozen=True)
class Replay:
    """One more run of an op. `keep`: storage -> uses of the life that begins here."""

    op: int
    keep: dict[int, int]


Burst = tuple[Replay, ...]


@dataclass(slots=True, frozen=True)
class Event:
    """Autograd unpacks a saved tensor."""

    slot: int
    op: int  # that it stands before
    # What is done before it, in this order: bursts, by their numbers, and what leaves for host
    # memory or begins to come back.
    parts: tuple[int | Sent | Fetch, ...] = ()
    kept: bool = False  # its pass of backward keeps the graph for another

    @property
    def copies(self) -> bool:
        """Whether anything leaves or comes back before it."""
        return not all(isinstance(part, int) for part in self.parts)


@dataclass(slots=True, frozen=True)
class Program:
    """What the tape does in one step."""

    rows: tuple[Row, ...]
    regions: tuple[tuple[int, int], ...]  # rows of every forward call of the root
    slots: tuple[bool, ...]  # True: given up, made again at its unpack
    # By slot: the version of its storage that the unpack finds in memory. Later than the one that
    # was packed where another part of the storage was written in between (the gates of an LSTM).
    # Of what is sent to host memory, counted from there.
    versions: tuple[int, ...]
    events: tuple[Event, ...]  # in the order of the backward
    bursts: tuple[Burst, ...]
    replays: int  # and groups of optimizer state that leave; 0: there is nothing to do
    # By slot: the row before which it is packed, as an input of that call or an output of the one
    # before it. Not known, in a program written by hand: empty.
    windows: tuple[int, ...] = ()
    outputs: frozenset[int] = frozenset()  # slots that are outputs of the call before
    # By slot that is given up: how many unpacks find it as it was saved, and the last of them gives
    # it up, as where two backward passes go through one graph. Empty: it is given up when packed.
    firsts: tuple[int, ...] = ()
    # The storages of the model's parameters, if replays read gathered ones that are made of them.
    sources: frozenset[int] = frozenset()
    wrapped: bool = False  # some discarded tensor is the part of a wrapper, as of a DTensor
    # By storage that is sent to host memory; and the bytes of all places there.
    places: dict[int, Place] = field(default_factory=dict)
    host_bytes: int = 0
    leaving: tuple[tuple[int, ...], ...] = ()  # by forward: storages that are let go at its end
    # From here on, storages are groups of optimizer state (optimizer_state.py).
    first_state: int = FETCHED

    @property
    def state(self) -> dict[int, Place]:
        """The places of groups of optimizer state that are sent to host memory."""
        return {s: place for s, place in self.places.items() if s >= self.first_state}

    def written(self, storage: int) -> int:
        """Returns how often a storage was written in place before the tape knows it."""
        place = self.places.get(storage)
        return 0 if place is None else place.written

    def made_by(self, replay: Replay) -> int:
        """Returns the op that made what a replay makes again."""
        return replay.op if replay.op < FETCHED else self.places[replay.op - FETCHED].maker

    def replays_before(self, event: Event) -> Burst:
        """Returns the replays before an event, in their order."""
        return tuple(r for part in event.parts if isinstance(part, int) for r in self.bursts[part])


def versions_needed(ops: Sequence[CapturedOp]) -> list[dict[int, int]]:
    """Returns by op the version of every listed storage that it reads, in base order."""
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
    """Follows a program before its first use as the tape will, with counts, not tensors. Returns
    why the tape could not run it to its end; empty if it can.

    The tape frees a copy after its last use and a recorded call after its last replay. If the
    program frees something too early, that must be found when the plan is compiled, not in a step.
    For the step as captured, the rehearsal proves that

    - every replay finds its inputs, in the first life of a tensor or in a copy of the right
      version;
    - every unpack of a discarded tensor finds its copy;
    - so at every event everything that is unpacked later can be made from what is present, by
      replays that are still to come and whose inputs are present or made by others of them. This is
      what lets the replayer recompute anything on demand when a backward leaves the captured order.

    Takes time linear in the number of arguments of all replays."""
    rehearsal = _Rehearsal(program, step)
    for event in program.events:
        for replay in program.replays_before(event):
            why = rehearsal.replay(replay)
            if why:
                return why
        why = rehearsal.unpack(event.slot) if program.slots[event.slot] else ""
        if why:
            return why
    return ""


class _Rehearsal:
    """The state of a rehearsal: which copies are present, in which version, and how often they are
    used."""

    def __init__(self, program: Program, step: CapturedStep) -> None:
        self._program, self._step = program, step
        self._needed = versions_needed(step.ops)
        self._left = {row.op: row.replays for row in program.rows if row.replays}
        self._left.update((FETCHED + s, place.fetches) for s, place in program.places.items())
        self._first = {row.op: list(row.first_life_reads) for row in program.rows if row.replays}
        self._cells = {s for row in program.rows for s in row.cells if s >= 0}
        self._cells.update(program.places)
        self._version: dict[int, int] = {}  # of the copies that are present
        self._uses: dict[int, int] = {}
        self._firsts = list(program.firsts)  # how many unpacks still return the saved tensor

    def replay(self, replay: Replay) -> str:
        """Replays a call; returns why it cannot run, or an empty string."""
        fetched = replay.op >= FETCHED
        op = self._step.ops[self._program.made_by(replay)]
        name = f"op {replay.op} {op.name}" if not fetched else f"the fetch of {op.name}"
        if self._left.get(replay.op, 0) <= 0:
            return f"{name} is to be replayed, but its record was already released"
        self._left[replay.op] -= 1
        if fetched:
            for made, uses in replay.keep.items():
                self._version[made], self._uses[made] = 1, uses
            return ""
        used = set()
        first = self._first[replay.op]
        own = {s.id for s in op.mutates}
        for position, storage in enumerate(op.arguments):
            if storage.id not in self._cells or first[position] < 0:
                continue  # the record holds it
            if first[position] > 0 and storage.id not in own:
                first[position] -= 1
                continue
            version = self._needed[replay.op][storage.id] - self._program.written(storage.id)
            why = self._find(storage.id, version, name)
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
        """Unpacks a saved tensor; returns why it is not available, or an empty string."""
        if self._firsts and self._firsts[slot] > 0:
            self._firsts[slot] -= 1
            return ""
        storage = self._step.slots[slot].storage.id
        why = self._find(storage, self._program.versions[slot], f"saved tensor {slot}")
        if not why:
            self._use(storage)
        return why

    def _find(self, storage: int, version: int, who: str) -> str:
        """Returns why no copy of a storage has this version; empty if one has."""
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
