# SPDX-License-Identifier: Apache-2.0
"""Compiles the schedule of a plan into what the tape does, op by op.

    program = compile_plan(graph, plan.schedule)      # PlanRejected: the tape cannot run it
    program = compile_plan(graph, plan.schedule, state)   # with groups of optimizer state

Walks the schedule once, as the evaluator does, and notes for the ops of the root's forward

    rows     expected overload; is the call recorded; which outputs become cells; how often each
             argument is read by a replay while its first life still lasts
    slots    is the n-th tensor that autograd packs saved, or discarded
    events   in which order autograd unpacks them in the backward, and what is done just before
             each: bursts of replays, and copies to and from host memory (compile_copies.py)
    bursts   which calls are replayed, which of their outputs stay, for how many uses

A life is the time from a run of the op that makes a storage to the free of the storage. The first
life is the program's own tensor; every later one belongs to the tape, which frees it after its
last use. So what is alive follows the schedule without looking at it again.

A use is an unpack, or a replay that leads to one. A schedule may also replay an op whose outputs
nothing uses. The compiler leaves such a replay out and does not count its reads as uses: they would
never come, and the life they were counted for would never end. The result is rehearsed
(program.py) before it is returned. Time and memory are linear in the schedule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reprise.torch.capture.captured import BACKWARD, FORWARD, CapturedStorage
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.internals.ops import OpKind, mutated_positions
from reprise.torch.tape.compile_copies import (
    COME,
    FETCH,
    FREE,
    SEND,
    SENT,
    Copies,
    Move,
    decoded,
    parked,
)
from reprise.torch.tape.program import (
    FETCHED,
    Event,
    Place,
    PlanRejected,
    Program,
    Replay,
    Row,
    rehearse,
    versions_needed,
)

Life = tuple[int, int]  # storage, number


@dataclass(slots=True)
class _Again:
    """A replay as the schedule has it."""

    op: int
    before: int  # the base op it stands before
    reads: list[Life]  # also those it writes in place
    changes: list[Life]  # those it writes in place
    born: list[Life]


def compile_plan(
    graph: CapturedGraph, schedule: Sequence[int], state: Sequence[int] = ()
) -> Program:
    """Checks a schedule against the captured step and compiles it. `state`: the bytes of the groups
    of optimizer state that the schedule has as storages beside those of the graph."""
    return _Compiler(graph, state).run(schedule)


class _Compiler:
    def __init__(self, graph: CapturedGraph, state: Sequence[int]) -> None:
        self._graph = graph
        self._ops = graph.step.ops
        self._needed = versions_needed(self._ops)
        # By storage: the ops of the backward that write it in place.
        self._writes: defaultdict[int, list[int]] = defaultdict(list)
        for number, op in enumerate(self._ops):
            for storage in self._listed(op.mutates) if op.phase != FORWARD else ():
                self._writes[storage].append(number)
        # The evaluator's state, with lives instead of bytes: by storage, what is present and which
        # of the lives that were born.
        self._version: dict[int, int] = {}
        self._life: dict[int, int] = {}
        self._born: Counter[int] = Counter()
        self._ran: Counter[int] = Counter()
        self._next = 0  # next op in base order
        self._again: list[_Again | Move] = []
        self._copies = Copies(graph, state)
        # Life in which each unpack finds its storage, in the order of the unpacks.
        self._unpacks_at: dict[int, list[int]] = defaultdict(list)
        for number, unpack in enumerate(graph.step.unpacks):
            self._unpacks_at[min(unpack.op, len(self._ops) - 1)].append(number)
        self._unpack_life = [0] * len(graph.step.unpacks)

    def run(self, schedule: Sequence[int]) -> Program:
        """Returns the program of a schedule. PlanRejected: it does not fit the captured step, or
        a rehearsal of the program fails."""
        for entry in schedule:
            if entry < 0:
                kind, storage = decoded(entry)
                if kind != FREE:
                    self._copy(kind, storage)
                elif self._version.pop(storage, None) is None:
                    raise PlanRejected(f"plan: storage {storage} is freed while it is not present")
            elif entry >= len(self._ops):
                raise PlanRejected(f"plan: op {entry} is not in the captured step")
            elif self._ran[entry] == 0:
                self._first_run(entry)
            else:
                self._replay(entry)
        if self._next != len(self._ops):
            raise PlanRejected(f"plan: op {self._next} never runs")
        program = self._program()
        why = rehearse(program, self._graph.step)
        if why:
            raise PlanRejected(f"plan: {why}")
        return program

    # ---- Walking the schedule -------------------------------------------------

    def _first_run(self, number: int) -> None:
        if number != self._next:
            raise PlanRejected(f"plan: op {number} runs before op {self._next}")
        self._next += 1
        self._ran[number] = 1
        self._check_inputs(number)
        for unpack in self._unpacks_at.get(number, ()):
            storage = self._graph.step.slots[self._graph.step.unpacks[unpack].slot].storage
            if storage.id >= 0:
                self._unpack_life[unpack] = self._life[storage.id]
        self._write(number)

    def _replay(self, number: int) -> None:
        op = self._ops[number]
        name = f"plan: op {number} {op.name}"
        if op.kind == OpKind.VIEW:
            return  # made again with whoever reads it
        if op.kind not in (OpKind.PURE, OpKind.SEEDED) or not op.in_region:
            raise PlanRejected(f"{name} runs twice, but it is {op.kind.name.lower()}")
        if op.phase != FORWARD or self._next >= len(self._ops):
            raise PlanRejected(f"{name} runs twice, but it is not a forward op")
        if self._ops[self._next].phase != BACKWARD:
            raise PlanRejected(f"{name} runs again outside the backward")
        self._check_window(number, self._next)
        self._check_inputs(number)
        reads = [(s, self._life[s]) for s in self._listed(op.reads)]
        changes = [(s, self._life[s]) for s in self._listed(op.mutates)]
        for storage, life in changes:
            if life == 0:
                raise PlanRejected(f"{name} would write storage {storage} of the program")
        born = self._write(number)
        self._ran[number] += 1
        self._again.append(_Again(number, self._next, reads, changes, born))

    def _copy(self, kind: int, storage: int) -> None:
        """Walks over an entry that uses host memory."""
        copies, before = self._copies, self._next
        if copies.is_state(storage):
            moved = copies.moves_state(kind, storage, before)
            self._again += [] if moved is None else [moved]
        elif kind == SEND:
            copies.send(storage, self._version.get(storage), self._life.get(storage))
        elif kind == SENT:
            self._again.append(copies.sent(storage, before))
            del self._version[storage]
        elif kind == FETCH:
            life = self._life[storage] = self._born[storage]
            self._born[storage] += 1
            if storage in self._version:
                raise PlanRejected(f"plan: storage {storage} comes back, but is present")
            move, self._version[storage] = copies.fetch(storage, life, before)
            self._again.append(move)
        elif kind == COME:
            copies.fetched(storage)
            life = self._life[storage]
            self._again.append(_Again(FETCHED + storage, before, [], [], [(storage, life)]))
        else:
            raise PlanRejected(f"plan: storage {storage} is in an entry of no known kind")

    def _check_window(self, number: int, before: int) -> None:
        """Refuses a replay where a gathered parameter that it reads is not in memory."""
        windows = self._ops[number].replay_windows
        if windows and not any(first <= before <= last for first, last in windows):
            raise PlanRejected(
                f"plan: op {number} {self._ops[number].name} runs again right before op {before}, "
                "where a parameter that it reads is not gathered"
            )

    def _check_inputs(self, number: int) -> None:
        for storage, version in self._needed[number].items():
            present = self._version.get(storage)
            if storage in self._copies.coming:
                raise PlanRejected(f"plan: op {number} reads storage {storage} while it comes back")
            if present != version:
                held = "is absent" if present is None else f"is at version {present}"
                raise PlanRejected(
                    f"plan: op {number} {self._ops[number].name} needs storage {storage} at "
                    f"version {version}, which {held}"
                )

    def _write(self, number: int) -> list[Life]:
        """Writes the outputs of an op; returns the lives that begin with it."""
        op = self._ops[number]
        born: list[Life] = []
        for storage in self._listed(op.writes):
            present = self._version.get(storage)
            if present is None:
                self._life[storage] = self._born[storage]
                born.append((storage, self._born[storage]))
                self._born[storage] += 1
                self._version[storage] = 1
            elif present != 1:
                raise PlanRejected(
                    f"plan: op {number} writes storage {storage}, present at version {present}"
                )
        for storage in self._listed(op.mutates):
            self._version[storage] += 1
        return born

    @staticmethod
    def _listed(storages: Sequence[CapturedStorage]) -> list[int]:
        return [s.id for s in storages if s.id >= 0]

    # ---- Writing the program ----------------------------------------------------

    def _program(self) -> Program:
        step = self._graph.step
        # Of a slot unpacked several times the first unpacks may find the life that was saved.
        dropped = [False] * len(step.slots)
        firsts = [0] * len(step.slots)
        for number, unpack in enumerate(step.unpacks):
            dropped[unpack.slot] = self._unpack_life[number] > 0
            firsts[unpack.slot] += self._unpack_life[number] == 0
        versions = [0] * len(step.slots)
        for unpack in step.unpacks:
            found = self._needed[min(unpack.op, len(self._ops) - 1)].get(
                step.slots[unpack.slot].storage.id, 0
            )
            if versions[unpack.slot] not in (0, found):
                dropped[unpack.slot] = False
            versions[unpack.slot] = found
        unpacked = [
            (unpack.op, (step.slots[unpack.slot].storage.id, self._unpack_life[number]))
            for number, unpack in enumerate(step.unpacks)
            if dropped[unpack.slot] and self._unpack_life[number] > 0
        ]
        wanted = self._useful(unpacked)
        useful = [again for again in wanted if isinstance(again, _Again)]
        uses: Counter[Life] = Counter(life for _, life in unpacked)
        uses.update(read for again in useful for read in again.reads)
        for storage, life in uses:
            if life > 0 and self._graph.storages[storage].pinned:
                raise PlanRejected(f"plan: storage {storage} is pinned, and read by a replay")

        regions, numbers = self._forwards()
        copies = self._copies
        begins: defaultdict[int, list[int]] = defaultdict(list)  # op -> storages made again
        events: list[Event] = []
        following = iter(copies.place(wanted, numbers))
        item = next(following, None)
        for number, unpack in enumerate(step.unpacks):
            due: list[Replay | Move] = []
            while item is not None and item.before <= unpack.op:
                if isinstance(item, Move):
                    due.append(item)
                else:
                    self._check_writes(item, unpack.op)
                    keep = {life[0]: uses[life] for life in item.born if uses[life]}
                    begins[item.op] += keep
                    due.append(Replay(item.op, keep))
                item = next(following, None)
            before = min(unpack.op, len(self._ops) - 1)
            parts = copies.parts(number, unpack.op, due)
            events.append(Event(unpack.slot, before, parts, unpack.kept))
        replays = Counter(again.op for again in useful)
        first_life = Counter((a.op, s) for a in useful for s, life in a.reads if life == 0)
        places, host_bytes = copies.places()
        for op, made in begins.items():
            both = [s for s in made if op < FETCHED and s in places and places[s].written]
            if both:
                raise PlanRejected(
                    f"plan: storage {both[0]} is written in place, and sent as well as made again"
                )
        rows = [
            self._row(number, replays[number], begins[number], first_life, places)
            for number in numbers
        ]
        # Whether a slot is discarded, but not at once; whether a replay reads what is gathered.
        later = any(gone and first > 0 for gone, first in zip(dropped, firsts, strict=False))
        gathered = any(self._ops[again.op].replay_windows for again in useful if again.op < FETCHED)
        return Program(
            rows=tuple(rows),
            regions=tuple(regions),
            slots=tuple(dropped),
            versions=tuple(self._known_versions(versions, places)),
            events=tuple(events),
            bursts=tuple(copies.bursts),
            replays=len(useful) + sum(map(copies.is_state, places)),
            windows=tuple(bisect_left(numbers, slot.op) for slot in step.slots),
            outputs=frozenset(n for n, slot in enumerate(step.slots) if slot.output),
            firsts=tuple(firsts) if later else (),
            sources=step.parameters if gathered else frozenset(),
            wrapped=any(s.in_wrapper for s, gone in zip(step.slots, dropped, strict=True) if gone),
            places=places,
            host_bytes=host_bytes,
            leaving=tuple(tuple(copies.at_end[n]) for n in range(len(regions))) if places else (),
            first_state=copies.first_state,
        )

    def _known_versions(self, versions: list[int], places: dict[int, Place]) -> Iterator[int]:
        """Yields the versions that slots find as the tape counts them."""
        for slot, version in zip(self._graph.step.slots, versions, strict=True):
            place = places.get(slot.storage.id)
            yield version if place is None else version - place.written

    def _forwards(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Returns the rows of every forward, first and one past the last, and the ops of all."""
        regions: list[tuple[int, int]] = []
        numbers: list[int] = []
        for first, end in self._graph.step.regions:
            begin = len(numbers)
            numbers += [
                number
                for number in range(first, end)
                if self._ops[number].func is not None and self._ops[number].phase == FORWARD
            ]
            regions.append((begin, len(numbers)))
        return regions, numbers

    def _check_writes(self, again: _Again, until: int) -> None:
        """A replay that the tape runs later than the schedule has it reads the same values."""
        if again.op >= FETCHED:
            return
        self._check_window(again.op, until)
        for storage, _ in again.reads:
            writes = self._writes.get(storage, ())
            at = bisect_left(writes, again.before)
            if at < len(writes) and writes[at] < until:
                raise PlanRejected(
                    f"plan: op {again.op} {self._ops[again.op].name} would run again after op "
                    f"{writes[at]} has written storage {storage}, which it reads"
                )

    def _useful(self, unpacked: Sequence[tuple[int, Life]]) -> list[_Again | Move]:
        """The replays that lead to an unpack, found from the last one backwards, and what leaves
        and comes back for them."""
        wanted: set[Life] = set()
        useful: list[_Again | Move] = []
        later = list(unpacked)
        fetched: set[int] = set()
        for again in reversed(self._again):
            if isinstance(again, Move):
                if self._copies.is_state(again.storage):
                    useful.append(again)
                elif again.life >= 0 and (again.storage, again.life) in wanted:
                    fetched.add(again.storage)
                    useful.append(again)
                elif again.life < 0 and again.storage in fetched:
                    useful.append(again)
                continue
            while later and later[-1][0] >= again.before:
                wanted.add(later.pop()[1])
            if not wanted.isdisjoint(again.born) or not wanted.isdisjoint(again.changes):
                wanted.update(again.reads)
                useful.append(again)
        useful.reverse()
        return useful

    def _row(
        self,
        number: int,
        replays: int,
        again: list[int],
        first: Counter[tuple[int, int]],
        places: dict[int, Place],
    ) -> Row:
        op = self._ops[number]
        row = Row(op.func, number, writes=bool(mutated_positions(op.func)))
        row.replays, row.side, row.covered = replays, op.side, op.covered
        if replays:
            row.seeded = op.kind == OpKind.SEEDED
            row.short = op.again_ns > 0
            row.cells = tuple(
                s.id if s is not None and s in op.writes and s.id in again else -1
                for s in op.outputs
            )
            row.first_life_reads = tuple(
                -1 if s.id < 0 else first[number, s.id] for s in op.arguments
            )
        row.parked = parked(number, op, places)
        row.sent = tuple(self._copies.at_row[number])
        row.plain = not (row.replays or row.writes or row.parked or row.sent)
        return row
