# SPDX-License-Identifier: Apache-2.0
"""Compiles the schedule of a plan into what the tape does, op by op.

    program = compile_plan(graph, plan.schedule)      # PlanRejected: the tape cannot run it

Walks the schedule once, as the evaluator does, and notes for the ops of the root's forward

    rows     expected overload; is the call recorded; which outputs become cells; how often each
             argument is read by a replay while its first life still lasts
    slots    is the n-th tensor that autograd packs saved, or discarded
    events   in which order autograd unpacks them in the backward
    bursts   which calls are replayed just before an event, which of their outputs stay, for how
             many uses

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
from collections.abc import Sequence
from dataclasses import dataclass

from reprise.base.errors import RepriseError
from reprise.torch.capture.captured import BACKWARD, FORWARD, CapturedStorage
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.internals.ops import OpKind, mutated_positions
from reprise.torch.tape.program import Burst, Program, Replay, Row, rehearse, versions_needed

Life = tuple[int, int]  # storage, number


class PlanRejected(RepriseError):
    """The tape cannot run this plan; nothing was changed."""


@dataclass(slots=True)
class _Again:
    """A replay as the schedule has it."""

    op: int
    before: int  # the base op it stands before
    reads: list[Life]  # also those it writes in place
    changes: list[Life]  # those it writes in place
    born: list[Life]


def compile_plan(graph: CapturedGraph, schedule: Sequence[int]) -> Program:
    """Checks a schedule against the captured step and compiles it."""
    return _Compiler(graph).run(schedule)


class _Compiler:
    def __init__(self, graph: CapturedGraph) -> None:
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
        self._again: list[_Again] = []
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
                if self._version.pop(-entry - 1, None) is None:
                    raise PlanRejected(
                        f"plan: storage {-entry - 1} is freed while it is not present"
                    )
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
        useful = self._useful(unpacked)
        uses: Counter[Life] = Counter(life for _, life in unpacked)
        uses.update(read for again in useful for read in again.reads)
        for storage, life in uses:
            if life > 0 and self._graph.storages[storage].pinned:
                raise PlanRejected(f"plan: storage {storage} is pinned, and read by a replay")

        begins: defaultdict[int, list[int]] = defaultdict(list)  # op -> storages made again
        bursts: list[Burst] = []
        following = iter(useful)
        again = next(following, None)
        for unpack in step.unpacks:
            burst: list[Replay] = []
            while again is not None and again.before <= unpack.op:
                self._check_writes(again, unpack.op)
                keep = {life[0]: uses[life] for life in again.born if uses[life]}
                begins[again.op] += keep
                burst.append(Replay(again.op, keep))
                again = next(following, None)
            bursts.append(tuple(burst))
        replays = Counter(again.op for again in useful)
        first_life = Counter((a.op, s) for a in useful for s, life in a.reads if life == 0)

        rows: list[Row] = []
        regions: list[tuple[int, int]] = []
        for first, end in step.regions:
            begin = len(rows)
            rows += [
                self._row(number, replays[number], begins[number], first_life)
                for number in range(first, end)
                if self._ops[number].func is not None and self._ops[number].phase == FORWARD
            ]
            regions.append((begin, len(rows)))
        numbers = [row.op for row in rows]
        # Whether a slot is discarded, but not at once; whether a replay reads what is gathered.
        later = any(gone and first > 0 for gone, first in zip(dropped, firsts, strict=False))
        gathered = any(self._ops[again.op].replay_windows for again in useful)
        return Program(
            rows=tuple(rows),
            regions=tuple(regions),
            slots=tuple(dropped),
            versions=tuple(versions),
            events=tuple(unpack.slot for unpack in step.unpacks),
            event_ops=tuple(min(unpack.op, len(self._ops) - 1) for unpack in step.unpacks),
            bursts=tuple(bursts),
            replays=len(useful),
            windows=tuple(bisect_left(numbers, slot.op) for slot in step.slots),
            outputs=frozenset(n for n, slot in enumerate(step.slots) if slot.output),
            kept=tuple(unpack.kept for unpack in step.unpacks),
            firsts=tuple(firsts) if later else (),
            sources=step.parameters if gathered else frozenset(),
            wrapped=any(s.in_wrapper for s, gone in zip(step.slots, dropped, strict=True) if gone),
        )

    def _check_writes(self, again: _Again, until: int) -> None:
        """A replay that the tape runs later than the schedule has it reads the same values."""
        self._check_window(again.op, until)
        for storage, _ in again.reads:
            writes = self._writes.get(storage, ())
            at = bisect_left(writes, again.before)
            if at < len(writes) and writes[at] < until:
                raise PlanRejected(
                    f"plan: op {again.op} {self._ops[again.op].name} would run again after op "
                    f"{writes[at]} has written storage {storage}, which it reads"
                )

    def _useful(self, unpacked: Sequence[tuple[int, Life]]) -> list[_Again]:
        """The replays that lead to an unpack, found from the last one backwards."""
        wanted: set[Life] = set()
        useful: list[_Again] = []
        later = list(unpacked)
        for again in reversed(self._again):
            while later and later[-1][0] >= again.before:
                wanted.add(later.pop()[1])
            if not wanted.isdisjoint(again.born) or not wanted.isdisjoint(again.changes):
                wanted.update(again.reads)
                useful.append(again)
        useful.reverse()
        return useful

    def _row(
        self, number: int, replays: int, again: list[int], first: Counter[tuple[int, int]]
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
        row.plain = not row.replays and not row.writes
        return row
