# SPDX-License-Identifier: Apache-2.0
"""Whether a schedule is valid, its peak and its time: the definition that every plan is held to.

    evaluate(graph, base_schedule(graph)).peak_bytes
    evaluate(graph, plan.schedule, executor="tape")

It is planner/model/evaluate.h in Python, message for message, so that an executor of any framework
can be tested without a server; tests compare both on random graphs. Entries are those of
`Plan.schedule`: e >= 0 runs op e, e < 0 frees storage -e-1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import NoReturn, SupportsIndex

from reprise.agent.received import FreePolicy
from reprise.base.errors import RepriseError
from reprise.plan.capabilities import Capabilities
from reprise.plan.step_graph import Op, StepGraph


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The peak, the time and the runs of a valid schedule."""

    peak_bytes: int
    # The first op that reaches the peak, and its position in the schedule; -1: no op.
    peak_op: int
    peak_entry: int
    time_ns: int
    execs: int
    # Bytes alive while each op of the schedule runs, in its order.
    bytes_at: tuple[int, ...]


def evaluate(
    graph: StepGraph, schedule: Sequence[int], executor: str | Capabilities = "free"
) -> Evaluation:
    """Walks a schedule. `RepriseError`: the first entry that breaks a rule, with op, storage,
    wanted and present version."""
    if not isinstance(graph, StepGraph):
        _refuse(f"graph: must be a reprise.plan.StepGraph, got {type(graph).__name__}")
    graph.check()
    return _Walk(graph, Capabilities.of(executor).in_effect()).walk(_entries(schedule))


def _entries(schedule: Sequence[int]) -> list[int]:
    if isinstance(schedule, (str, bytes)) or not isinstance(schedule, Iterable):
        _refuse(f"schedule: must be a list of integers, got {schedule!r}"[:120])
    entries = list(schedule)
    for i, entry in enumerate(entries):
        if not isinstance(entry, SupportsIndex) or isinstance(entry, bool):
            _refuse(f"schedule[{i}]: must be an integer, got {entry!r}"[:120])
    return [index(entry) for entry in entries]


class _Walk:
    def __init__(self, graph: StepGraph, capabilities: Capabilities) -> None:
        self._graph = graph
        self._can = capabilities
        # Version that each op needs of what it reads; the last one of each storage.
        self._needs, self._last = _versions(graph)
        self._present: dict[int, int] = {}
        self._lives = [0] * len(graph.storages)
        self._runs = [0] * len(graph.ops)
        self._last_run: dict[int, int] = {}
        self._next = 0
        self._live = 0
        self._at = 0

    def walk(self, schedule: list[int]) -> Evaluation:
        """Runs the schedule and returns its peak and time. RepriseError, with the entry: it is
        not valid for this graph."""
        graph = self._graph
        for i, entry in enumerate(schedule):
            if entry >= len(graph.ops):
                _refuse(f"schedule[{i}]: there is no op {entry}")
            if -entry - 1 >= len(graph.storages):
                _refuse(f"schedule[{i}]: there is no storage {-entry - 1}")
            if entry >= 0:
                self._last_run[entry] = i
        peak, peak_op, peak_entry, time_ns = 0, -1, -1, 0
        bytes_at: list[int] = []
        for self._at, entry in enumerate(schedule):
            if entry < 0:
                self._free(-entry - 1)
                continue
            again = self._runs[entry] > 0
            alive = self._exec(entry)
            bytes_at.append(alive)
            if alive > peak or peak_op < 0:
                peak, peak_op, peak_entry = alive, entry, self._at
            op = graph.ops[entry]
            time_ns += (op.again_ns or op.time_ns) + self._can.ns_per_op if again else op.time_ns
            if time_ns >= 1 << 63:
                _refuse(f"{self._where(entry)}: the times of all runs sum to more than 2^63")
        self._check_end()
        if peak_op < 0:
            peak = graph.static_bytes
        return Evaluation(peak, peak_op, peak_entry, time_ns, len(bytes_at), tuple(bytes_at))

    def _where(self, o: int) -> str:
        name = self._graph.ops[o].name
        return f"schedule[{self._at}]: op {o}" + (f" ({name[:80]})" if name else "")

    def _free(self, s: int) -> None:
        if s not in self._present:
            _refuse(f"schedule[{self._at}]: storage {s} is freed but not present")
        held = self._graph.storages[s].release_op
        program = self._can.free_policy == FreePolicy.PROGRAM
        if program and held is not None and self._lives[s] == 1 and self._runs[held] == 0:
            _refuse(
                f"schedule[{self._at}]: storage {s} is freed before op {held} has run, "
                "up to which the program holds it"
            )
        del self._present[s]
        self._live -= self._graph.storages[s].bytes

    def _check_may_run(self, o: int) -> None:
        if self._runs[o] == 0:
            if o != self._next:
                _refuse(f"{self._where(o)} runs for the first time before op {self._next}")
            return
        most = self._can.max_runs
        if 0 < most <= self._runs[o]:
            _refuse(f"{self._where(o)} runs more than {most} times")
        op, backward_only = self._graph.ops[o], self._can.recompute_in_backward_only
        allowed = {"seeded": self._can.seeded_ok, "collective": self._can.collective_ok}
        of_kind = allowed.get(op.kind, op.kind != "once")
        if not of_kind or (backward_only and op.phase != "forward"):
            _refuse(
                f"{self._where(o)} must not run again: its kind, its phase or the executor "
                "forbids it"
            )
        ops = self._graph.ops
        if self._next < len(ops) and not ops[self._next].replay_point:
            _refuse(
                f"{self._where(o)} runs again right before op {self._next}, where the executor "
                "cannot run anything again"
            )
        if not self._in_window(op):
            _refuse(
                f"{self._where(o)} runs again right before op {self._next}, outside its replay "
                "windows"
            )
        if backward_only and (self._next == len(ops) or ops[self._next].phase != "backward"):
            _refuse(
                f"{self._where(o)} runs again, but the next op in base order is not a backward op"
            )

    def _in_window(self, op: Op) -> bool:
        """Returns whether the op's windows let it run again right before the next op."""
        ends = zip(op.replay_windows[::2], op.replay_windows[1::2], strict=True)
        return not op.replay_windows or any(a <= self._next <= b for a, b in ends)

    def _check_needs(self, o: int) -> None:
        for s, version in self._needs[o]:
            present = self._present.get(s, 0)
            if present != version:
                fact = f"version {present} is present" if present else "it is not present"
                _refuse(f"{self._where(o)} needs storage {s} at version {version}, but {fact}")
            if self._graph.storages[s].pinned and self._lives[s] > 1:
                _refuse(f"{self._where(o)} reads storage {s}, which is pinned, from a second life")

    def _exec(self, o: int) -> int:
        """Runs one op of the schedule and returns the bytes alive meanwhile."""
        self._check_may_run(o)
        self._check_needs(o)
        op, present = self._graph.ops[o], self._present
        workspace = op.workspace_bytes
        for s in op.writes:
            if s not in present:
                self._live += self._graph.storages[s].bytes
                self._lives[s] += 1
            elif present[s] != 1:
                _refuse(
                    f"{self._where(o)} writes storage {s}, but version {present[s]} is present: "
                    "free it first"
                )
            elif self._can.duplicate_outputs:
                workspace += self._graph.storages[s].bytes
            present[s] = 1
        for s in op.mutates:
            present[s] += 1
        # A seeded op that runs again needs its generator state, from its first run to its last.
        again, last = self._runs[o] > 0, self._last_run[o] == self._at
        keeps_state = op.kind == "seeded" and (again or not last)
        if keeps_state and not again:
            self._live += op.state_bytes
        alive = self._graph.static_bytes + self._live + workspace
        if keeps_state and last:
            self._live -= op.state_bytes
        self._runs[o] += 1
        self._next += not again
        return alive

    def _check_end(self) -> None:
        if self._next < len(self._graph.ops):
            _refuse(f"schedule: op {self._next} never runs")
        for s in self._graph.required:
            present = self._present.get(s, 0)
            if present != self._last[s]:
                fact = f"version {present} is present" if present else "it is not present"
                _refuse(
                    f"schedule: storage {s} is required at version {self._last[s]} at the end, "
                    f"but {fact}"
                )
            if self._graph.storages[s].pinned and self._lives[s] > 1:
                _refuse(f"schedule: storage {s} is pinned and required, but ends in a second life")


def _versions(graph: StepGraph) -> tuple[list[list[tuple[int, int]]], dict[int, int]]:
    """The walk over the base order that fixes what every op needs."""
    now: dict[int, int] = {}
    needs: list[list[tuple[int, int]]] = []
    for op in graph.ops:
        needs.append([(s, now[s]) for s in op.reads])
        for s in op.writes:
            now[s] = 1
        for s in op.mutates:
            now[s] += 1
    return needs, now


def _refuse(sentence: str) -> NoReturn:
    raise RepriseError(sentence)


# ---- Frees --------------------------------------------------------------------


def base_schedule(graph: StepGraph, policy: FreePolicy = FreePolicy.EAGER) -> list[int]:
    """Every op once, in base order, with the frees of the policy."""
    return with_frees(graph, range(len(graph.ops)), policy)


def with_frees(
    graph: StepGraph, execs: Iterable[int], policy: FreePolicy = FreePolicy.EAGER
) -> list[int]:
    """Completes a list of ops to run with the frees of the policy."""
    order = list(execs)
    ends = _life_ends(graph, order, policy == FreePolicy.PROGRAM)
    schedule: list[int] = []
    for at, op in enumerate(order):
        schedule.append(op)
        schedule += [-s - 1 for s in sorted(ends.get(at, ()))]
    return schedule


def _life_ends(graph: StepGraph, order: list[int], program: bool) -> dict[int, list[int]]:
    """Which storages end after which position of the order."""
    first_run = {o: at for at, o in reversed(list(enumerate(order)))}
    touched: dict[int, int] = {}
    second: set[int] = set()
    ends: dict[int, list[int]] = defaultdict(list)

    def held(s: int) -> int:
        """The position up to which the program holds the life that is open; -1: it does not. An op
        that never runs, in what is no whole step, is behind the last position."""
        op = graph.storages[s].release_op if program and s not in second else None
        return -1 if op is None else first_run.get(op, len(order))

    for at, o in enumerate(order):
        for s in graph.ops[o].reads:
            touched[s] = at
        for s in graph.ops[o].writes:
            if s in touched and held(s) < at and not graph.storages[s].pinned:
                ends[max(touched[s], held(s))].append(s)
                second.add(s)
            touched[s] = at
    for s in touched.keys() - set(graph.required):
        ends[max(touched[s], held(s))].append(s)
    return ends
