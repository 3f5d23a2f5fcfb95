# SPDX-License-Identifier: Apache-2.0
"""Moves the replays of a schedule to where the tape can run them, and says what that peaks at.

    placed = place(graph, schedule, limit_bytes)
    placed.schedule, placed.peak_bytes

A planner may put a replay before any op of the backward. The tape gets a word in only when autograd
unpacks a saved tensor: not between the ops that add gradients up, or in a node that saved nothing.

    schedule   U1  a  [r s]  b  U2        U: unpacks something; r s: replays
    late       U1  a  b  [r s]  U2        what r and s read lives on through b
    early      [r s]  U1  a  b  U2        what they make is there during U1 and a
    mixed      [r]  U1  a  b  [s]  U2

Late is where they go, as long as the peak stays within the limit; where it does not, the first ones
of that stretch go early, as many as makes its peak the least. The order among replays stays. Frees
are where the tape has them: after the last use of a life, a first life not before its release.

One walk is linear in the arities of the schedule; one walk per try, and only for stretches above
the limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from reprise.torch.capture.step_graph import CapturedGraph, state_bytes

__all__ = ["Placed", "own_frees", "peak_of", "place"]

# Tries per stretch, and walks in all: a plan is installed between two steps.
MAX_CUTS = 16
MAX_WALKS = 400


@dataclass(frozen=True, slots=True)
class Placed:
    """A schedule whose replays stand where the tape runs them, and the most bytes alive in it."""

    schedule: tuple[int, ...]
    peak_bytes: int
    early: int  # replays that run before an op they were to run after


@dataclass(slots=True)
class _Stretch:
    """Replays between two unpacks: the first `early` of them go before the first."""

    replays: list[int]
    before: int  # op with the unpack before them; -1: there is none
    after: int  # op with the next unpack
    early: int = 0


def place(
    graph: CapturedGraph, schedule: Sequence[int], limit_bytes: int, *, late: bool = False
) -> Placed:
    """Expects a schedule that compiles. `late`: nothing goes early."""
    stops = sorted({unpack.op for unpack in graph.step.unpacks})
    fixed, stretches = _split(len(graph.step.ops), schedule, stops)
    walk = _Walk(graph)
    best = walk.profile(_execs(fixed, stretches))
    walks = 1
    tried: set[int] = set()
    while max(best.bytes) > limit_bytes and walks < MAX_WALKS and not late:
        stretch = _above(stretches, best, limit_bytes, tried)
        if stretch is None:
            break
        tried.add(stretch.after)
        start = stretch.early
        found = stretch.early
        for cut in _cuts(len(stretch.replays)):
            if cut == start or walks >= MAX_WALKS:
                continue
            stretch.early = cut
            other = walk.profile(_execs(fixed, stretches))
            walks += 1
            if other.excess(limit_bytes) < best.excess(limit_bytes):
                best, found = other, cut
        stretch.early = found
    execs = _execs(fixed, stretches)
    early = sum(stretch.early for stretch in stretches)
    return Placed(tuple(walk.with_frees(execs)), max(best.bytes), early)


def own_frees(graph: CapturedGraph, schedule: Sequence[int]) -> list[int]:
    """The runs of a schedule, with frees as this capture has them. Of another rank's capture the
    ops are the same, by their structure; its storages have other numbers where something else was
    alive before the step, or is let go in it. What is no op here is left for the compiler."""
    if any(entry >= len(graph.step.ops) for entry in schedule):
        return list(schedule)
    return _Walk(graph).with_frees([entry for entry in schedule if entry >= 0])


def peak_of(graph: CapturedGraph, schedule: Sequence[int]) -> int:
    """The most bytes alive in a schedule as it stands, its frees as the tape has them."""
    walk = _Walk(graph)
    return max(walk.profile([e for e in schedule if e >= 0]).bytes)


def _split(
    count: int, schedule: Sequence[int], stops: list[int]
) -> tuple[list[list[int]], list[_Stretch]]:
    """By base op: the replays that stand right before it, where the tape can run them; and the
    others, in stretches."""
    fixed: list[list[int]] = [[] for _ in range(count)]
    stretches: dict[int, _Stretch] = {}
    waiting: list[int] = []
    ran = [False] * count
    stop = set(stops)
    for entry in schedule:
        if entry < 0:
            continue
        if ran[entry]:
            waiting.append(entry)
            continue
        ran[entry] = True
        if not waiting:
            continue
        if entry in stop:
            fixed[entry] += waiting
        else:
            at = bisect_left(stops, entry)
            if at < len(stops):  # after the last unpack nobody would run them
                after = stops[at]
                known = stretches.setdefault(
                    after, _Stretch([], stops[at - 1] if at else -1, after)
                )
                known.replays += waiting
        waiting = []
    return fixed, list(stretches.values())


def _execs(fixed: list[list[int]], stretches: Iterable[_Stretch]) -> list[int]:
    early: dict[int, list[int]] = {}
    late: dict[int, list[int]] = {}
    for stretch in stretches:
        early[stretch.before] = stretch.replays[: stretch.early]
        late[stretch.after] = stretch.replays[stretch.early :]
    execs: list[int] = []
    for op, replays in enumerate(fixed):
        execs += late.get(op, ())
        execs += replays
        execs += early.get(op, ())
        execs.append(op)
    return execs


def _cuts(length: int) -> list[int]:
    """How many of a stretch to try early."""
    step = max(1, length // MAX_CUTS)
    return [*range(0, length, step), length]


def _above(
    stretches: list[_Stretch], profile: _Profile, limit_bytes: int, tried: set[int]
) -> _Stretch | None:
    """The stretch around the highest place above the limit that was not tried yet."""
    found, highest = None, limit_bytes
    for stretch in stretches:
        if stretch.before < 0 or stretch.after in tried:
            continue
        first, last = profile.position[stretch.before], profile.position[stretch.after]
        top = max(profile.bytes[first : last + 1])
        if top > highest:
            found, highest = stretch, top
    return found


@dataclass(slots=True)
class _Profile:
    bytes: list[int]  # by exec: alive while it runs
    position: list[int]  # of the first run of every op

    def excess(self, limit_bytes: int) -> tuple[int, int]:
        """The peak, then how much lies above the limit."""
        over = sum(b - limit_bytes for b in self.bytes if b > limit_bytes)
        return max(self.bytes), over


class _Walk:
    """The evaluator of the planner (planner/model/evaluate.h, frees.cc), for lists of execs."""

    def __init__(self, graph: CapturedGraph) -> None:
        ops = graph.step.ops
        self._static = graph.static_bytes
        self._reads = [[s.id for s in op.reads if s.id >= 0] for op in ops]
        self._writes = [[s.id for s in op.writes if s.id >= 0] for op in ops]
        self._workspace = [op.workspace_bytes for op in ops]
        self._state = [state_bytes(op) for op in ops]
        self._bytes = [s.bytes for s in graph.storages]
        self._pinned = [s.pinned for s in graph.storages]
        self._release = graph.release
        self._required = set(graph.required)

    def _lives(
        self, execs: Sequence[int], first_run: list[int]
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
        """(storage, first, last exec) of every life; (storage, exec) where a replay makes one more
        beside a life that is held, and throws it away."""
        lives: list[tuple[int, int, int]] = []
        doubles: list[tuple[int, int]] = []
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        again: set[int] = set()  # in a later life
        for position, op in enumerate(execs):
            for s in self._reads[op]:
                last[s] = position
            for s in self._writes[op]:
                if s in born:
                    held = s not in again and first_run[self._release[s]] >= position
                    if held or self._pinned[s]:
                        doubles.append((s, position))
                    else:
                        lives.append((s, born[s], self._end(s, last[s], s in again, first_run)))
                        again.add(s)
                        born[s] = position
                else:
                    born[s] = position
                last[s] = position
        end = len(execs) - 1
        for s, begin in born.items():
            if s in self._required:
                lives.append((s, begin, end + 1))
            else:
                lives.append((s, begin, self._end(s, last[s], s in again, first_run)))
        return lives, doubles

    def _end(self, storage: int, last: int, again: bool, first_run: list[int]) -> int:
        return last if again else max(last, first_run[self._release[storage]])

    def profile(self, execs: Sequence[int]) -> _Profile:
        first_run = _first_runs(execs, len(self._reads))
        change = [0] * (len(execs) + 2)
        change[0] = self._static
        lives, doubles = self._lives(execs, first_run)
        for s, first, last in lives:
            change[first] += self._bytes[s]
            change[last + 1] -= self._bytes[s]
        for s, at in doubles:
            change[at] += self._bytes[s]
            change[at + 1] -= self._bytes[s]
        last_run: dict[int, int] = {}
        for position, op in enumerate(execs):
            if position != first_run[op]:
                last_run[op] = position
        for op, position in last_run.items():
            change[first_run[op]] += self._state[op]
            change[position + 1] -= self._state[op]
        alive = list(accumulate(change[: len(execs)]))
        return _Profile(
            [b + self._workspace[op] for b, op in zip(alive, execs, strict=True)], first_run
        )

    def with_frees(self, execs: Sequence[int]) -> list[int]:
        """Returns the schedule: `execs` with every storage freed after its last read."""
        frees: dict[int, list[int]] = {}
        lives, _ = self._lives(execs, _first_runs(execs, len(self._reads)))
        for s, _, last in lives:
            frees.setdefault(last, []).append(s)
        schedule: list[int] = []
        for position, op in enumerate(execs):
            schedule.append(op)
            schedule += [-s - 1 for s in sorted(frees.get(position, ()))]
        return schedule


def _first_runs(execs: Sequence[int], count: int) -> list[int]:
    found = [-1] * count
    for position, op in enumerate(execs):
        if found[op] < 0:
            found[op] = position
    return found
