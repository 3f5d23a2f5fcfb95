# SPDX-License-Identifier: Apache-2.0
"""The copies of a schedule, as the tape can run them: which storages are sent to host memory, when
they leave the device, when they come back.

    copies = Copies(graph, state)
    copies.send(...), copies.sent(...)       # as the schedule is walked
    copies.fetch(...), copies.fetched(...)
    copies.moves_state(...)                  # the same of a group of optimizer state
    copies.place(useful, rows)               # once it is known which of them lead to an unpack
    copies.parts(event, op, due)             # what is done before an event
    copies.places()                          # where all of them are on the host

Groups of optimizer state (optimizer_state.py) are storages that are sent when the step begins, and
are back when an optimizer steps; a schedule has them beside those of the graph.

The tape can act before an op of a forward, at the end of one, and before an unpack of the backward.
A storage is sent right after the op that has made it, or has written it in place last. It leaves
where the schedule says, or at the last such moment before: then `sent` waits longer, and less is
alive. It comes back at the first one after: it has less time to. So no step is larger than its
plan.

`staying` tells the planner what the tape cannot send.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from reprise.plan import Plan
from reprise.torch.capture.captured import FORWARD, CapturedOp, CapturedStep
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.offload.slab import Stay, laid_out
from reprise.torch.tape.program import FETCHED, Burst, Fetch, Place, PlanRejected, Replay, Sent

T = TypeVar("T")

_STORAGES = 1 << 24  # codes of one kind
FREE, SEND, SENT, FETCH, COME = range(5)


def decoded(entry: int) -> tuple[int, int]:
    """Returns the kind and the storage of an entry of a schedule that runs no op."""
    return divmod(-entry - 1, _STORAGES)


def coded(kind: int, storage: int) -> int:
    """Returns the entry of a kind about a storage."""
    return -(kind * _STORAGES + storage) - 1


def uses_host(plan: Plan) -> bool:
    """Returns whether a plan sends anything to host memory."""
    return any(entry < -_STORAGES for entry in plan.schedule)


def staying(graph: CapturedGraph, least_bytes: int) -> set[int]:
    """Returns the storages that the tape cannot send to host memory: what no op of the forward has
    made, or written in place last, where the tape sees it, what several backward passes read or one
    that keeps its graph, and what is smaller than `least_bytes`."""
    step = graph.step
    unpacks = Counter(unpack.slot for unpack in step.unpacks)
    kept = {unpack.slot for unpack in step.unpacks if unpack.kept}
    stay = set(graph.required)
    for number, slot in enumerate(step.slots):
        if slot.in_wrapper or number in kept or unpacks[number] > 1:
            stay.add(slot.storage.id)
    for op in step.ops:
        if op.side or op.covered:
            stay.update(storage.id for storage in (*op.writes, *op.mutates))
    maker_of = makers(step)
    stay.update(s.id for s in graph.storages if s.id not in maker_of)
    stay.update(s.id for s in graph.storages if s.pinned or s.bytes < least_bytes)
    return stay


def makers(step: CapturedStep) -> dict[int, int]:
    """Returns by storage the op of the forwards after which nothing writes it any more: the one
    that makes it, or writes it in place last. One that is written elsewhere has none."""
    found: dict[int, int] = {}
    for number, op in enumerate(step.ops):
        is_seen = op.func is not None and op.phase == FORWARD and op.in_region
        for storage in (*op.writes, *op.mutates):
            if storage.prior:
                continue
            if is_seen and storage in op.outputs:
                found[storage.id] = number
            else:
                found.pop(storage.id, None)
    return found


@dataclass(slots=True)
class Move:
    """A storage leaves, or begins to come back in a new life, as the schedule has it."""

    storage: int
    life: int  # of what comes back; -1: it leaves
    before: int  # the base op it stands before


class Copies:
    """The copies of one schedule."""

    def __init__(self, graph: CapturedGraph, state: Sequence[int] = ()) -> None:
        """`state`: the bytes of the groups of optimizer state, which are storages of the schedule
        behind those of the graph."""
        self._step = step = graph.step
        self._bytes = [storage.bytes for storage in graph.storages]
        self.first_state, self._state = len(graph.storages), state
        self._state_is: dict[int, int] = {}  # storage -> the latest entry about it
        groups = range(self.first_state, self.first_state + len(state))
        self._makers = makers(step) | dict.fromkeys(groups, 0)
        self._written = Counter(s.id for op in step.ops for s in op.mutates if s.id >= 0)
        self._host: dict[int, int] = {}  # storage -> version
        self._sending: set[int] = set()
        self.coming: set[int] = set()
        # By what is done: the storages that leave then. Ops, forwards, events.
        self.at_row: defaultdict[int, list[int]] = defaultdict(list)
        self.at_end: defaultdict[int, list[int]] = defaultdict(list)
        self._at_event: defaultdict[int, list[int]] = defaultdict(list)
        self._fetches: Counter[int] = Counter()
        self._last: dict[int, int] = {}  # storage -> the op before which it comes back last
        self.bursts: list[Burst] = []

    # ---- Walking the schedule -------------------------------------------------------

    def send(self, storage: int, version: int | None, life: int | None) -> None:
        """Walks over the beginning of a copy to the host. `version`, `life`: of what is present."""
        is_last = storage in self._makers and version == 1 + self._written[storage]
        if version is None or not is_last or life != 0 or storage in self._host:
            raise PlanRejected(f"plan: storage {storage} is sent where the tape cannot send it")
        self._host[storage] = version
        self._sending.add(storage)

    def sent(self, storage: int, before: int) -> Move:
        """Walks over the moment at which a storage leaves."""
        if storage not in self._sending:
            raise PlanRejected(f"plan: storage {storage} leaves, but was not sent")
        self._sending.remove(storage)
        return Move(storage, -1, before)

    def fetch(self, storage: int, life: int, before: int) -> tuple[Move, int]:
        """Walks over the beginning of a copy back; returns that and the version that comes."""
        if storage not in self._host or storage in self._sending:
            raise PlanRejected(f"plan: storage {storage} comes back, but is not on the host")
        self.coming.add(storage)
        return Move(storage, life, before), self._host[storage]

    def fetched(self, storage: int) -> None:
        """Walks over the end of that copy."""
        if storage not in self.coming:
            raise PlanRejected(f"plan: storage {storage} has come back, but was not fetched")
        self.coming.remove(storage)

    def is_state(self, storage: int) -> bool:
        """Returns whether a storage of the schedule is a group of optimizer state."""
        return 0 <= storage - self.first_state < len(self._state)

    def moves_state(self, kind: int, storage: int, before: int) -> Move | None:
        """Walks over an entry about a group of optimizer state; returns what is done then."""
        if kind != self._state_is.get(storage, FREE) + 1:
            raise PlanRejected(f"plan: optimizer state {storage} moves in no order known")
        self._state_is[storage] = kind
        return Move(storage, -1 if kind == SENT else 0, before) if kind in (SENT, FETCH) else None

    # ---- When the tape does it --------------------------------------------------------

    def place(self, useful: Iterable[T | Move], rows: Iterable[int]) -> list[T | Move]:
        """Finds the moments at which storages leave; returns what is done before events, in its
        order. `useful`: all that leads to an unpack; `rows`: the ops of the forwards."""
        moments = _Moments(self._step, rows)
        rest: list[T | Move] = []
        for item in useful:
            if not isinstance(item, Move) or item.life >= 0 or moments.is_event(item.before):
                rest.append(item)
                continue
            op, kind, number = moments.last(item.before)
            if op <= self._makers[item.storage]:
                raise PlanRejected(f"plan: storage {item.storage} leaves where the tape cannot act")
            {"row": self.at_row, "end": self.at_end, "event": self._at_event}[kind][number].append(
                item.storage
            )
        return rest

    def parts(
        self, event: int, op: int, due: Sequence[Replay | Move]
    ) -> tuple[int | Sent | Fetch, ...]:
        """Returns what is done before an event, with the numbers of bursts in place of replays.
        `op`: the op that it stands before."""
        found: list[int | Sent | Fetch] = []
        burst: list[Replay] = []
        for item in (*due, None):
            if isinstance(item, Replay):
                burst.append(item)
                if item.op >= FETCHED:
                    self._fetches[item.op - FETCHED] += 1
                    self._last[item.op - FETCHED] = op
                continue
            if burst:
                found.append(len(self.bursts))
                self.bursts.append(tuple(burst))
                burst = []
            if item is not None:
                storage = item.storage
                found.append(Sent(storage) if item.life < 0 else Fetch(storage))
        return (*found, *map(Sent, self._at_event.get(event, ())))

    def places(self) -> tuple[dict[int, Place], int]:
        """Returns where each storage that is fetched is on the host, and the bytes that all of them
        take."""
        stays = [Stay(s, self._bytes[s], self._makers[s], last) for s, last in self._last.items()]
        end = len(self._step.ops)
        stays += [Stay(s, self._state[s - self.first_state], 0, end) for s in self._state_is]
        at, total = laid_out(stays)
        places = {
            s: Place(at[s], size, self._fetches[s], maker, self._written[s])
            for s, size, maker, _ in stays
        }
        return places, total


def parked(number: int, op: CapturedOp, places: dict[int, Place]) -> tuple[int, ...]:
    """Returns by output of an op the storage that is sent after it, or -1; () if none is."""
    found = tuple(
        s.id if s is not None and s.id in places and places[s.id].maker == number else -1
        for s in op.outputs
    )
    # One that several outputs share is sent once.
    once = tuple(-1 if s in found[:n] else s for n, s in enumerate(found))
    return once if any(storage >= 0 for storage in once) else ()


class _Moments:
    """When the tape can act in a step, besides running its ops."""

    def __init__(self, step: CapturedStep, rows: Iterable[int]) -> None:
        last = {min(u.op, len(step.ops) - 1): n for n, u in enumerate(step.unpacks)}
        self._events = frozenset(last)
        self._all = [(op, "row", op) for op in rows]
        self._all += [(end, "end", number) for number, (_, end) in enumerate(step.regions)]
        self._all += [(op, "event", number) for op, number in last.items()]
        self._all.sort()
        self._ops = [op for op, _, _ in self._all]

    def is_event(self, op: int) -> bool:
        """Returns whether autograd unpacks something right before an op."""
        return op in self._events

    def last(self, op: int) -> tuple[int, str, int]:
        """Returns the last moment that is not after an op: its op, whether that is the one of a
        row, the first after a forward or the one after an event, and the number of that."""
        found = bisect_right(self._ops, op)
        return self._all[found - 1] if found else (-1, "row", -1)
