# SPDX-License-Identifier: Apache-2.0
"""What the tape itself costs in this job, on this machine: measured, not assumed.

    costs = measured_costs(touched_bytes)   # what an op of the job's forward reads and writes
    costs.replay_ns                         # per recorded and replayed call, beyond the call itself
    costs.armed_ns(tape)                    # per step, for looking at ops and saved tensors

Runs rows of the smallest ops there are, plainly and under programs written by hand, with the tape
that planned steps run on. In a job the ops in between throw Python, the tape and its data out of
the caches, and a call costs several times what it does alone; so between the ops others are
computed that touch as many bytes as one of the job, and the time of those is left out.

Of planned and of plain runs the quickest of some rounds, once per machine and size (costs_kept.py).
CPU time of this thread, which others only ever make longer; on a GPU it is what the host does,
which hides behind the device when that is the bottleneck.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cache
from math import log2
from statistics import median

import torch
from torch import Tensor

from reprise.torch.tape.costs_kept import KeptCosts
from reprise.torch.tape.program import Program, Replay, Row
from reprise.torch.tape.tape import Tape, compiled_half

__all__ = ["Costs", "measured_costs"]

SHORT, LENGTH = 3, 39
ROUNDS = 12
# More than a core's own caches hold makes nothing colder.
MOST_BYTES = 1 << 18
# And between what happens once in a step and the same in the next one nothing stays there.
STEP_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one op of a planned forward, of one saved tensor that goes through the hooks, of one
    replay; of an op that writes in place, beyond any op; of every forward."""

    op_ns: int
    saved_ns: int
    replay_ns: int
    write_ns: int = 0
    enter_ns: int = 0

    def armed_ns(self, tape: Tape) -> int:
        """What a step under this tape pays beyond its replays."""
        program = tape.program
        if not program.replays:
            return 0
        writes = sum(row.writes and not row.replays for row in program.rows)
        return (
            self.enter_ns * len(program.regions)
            + self.op_ns * len(program.rows)
            + self.write_ns * writes
            + self.saved_ns * tape.hooked
        )


def measured_costs(touched_bytes: int) -> Costs:
    """Once per machine and power of two, the nearest one."""
    size = 1 << round(log2(max(1, touched_bytes)))
    return _measured(min(size, MOST_BYTES))


@cache
def _measured(touched_bytes: int) -> Costs:
    if torch.is_inference_mode_enabled():
        return Costs(0, 0, 0)
    kept = KeptCosts("Python" if compiled_half() is None else "compiled")
    known = kept.find(touched_bytes)
    if known is not None and set(known) == set(Costs.__slots__):
        return Costs(**known)
    costs = _measure(touched_bytes)
    kept.keep(touched_bytes, asdict(costs))
    return costs


def _measure(touched_bytes: int) -> Costs:
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        jobs: list[_Job] = [_Looks(SHORT), _Looks(2 * LENGTH), _Writes(2 * LENGTH)]
        jobs += [_Saves(length, 0) for length in (SHORT, LENGTH)]
        jobs += [_Saves(length, length) for length in (SHORT, LENGTH)]
        cold = _Cold(touched_bytes)
        short, looks, writes, few, kept, few_again, again = _extra(jobs, cold)
        call = _call_ns(jobs[-1], cold)
        cold.let_go()
    more = LENGTH - SHORT
    op = max(0.0, (looks - short) / (more + LENGTH))
    pair = max(2 * op, (kept - few) / more)  # two ops, three saved tensors
    # The same, one of the tensors made again; what is left is paid once.
    made_again = max(pair, (again - few_again) / more)
    return Costs(
        op_ns=int(op),
        saved_ns=int((pair - 2 * op) / 3),
        replay_ns=int(max(op, made_again - pair - call)),
        write_ns=int(max(0.0, (writes - looks) / LENGTH / 2)),
        enter_ns=int(max(0.0, few_again - SHORT * made_again)),
    )


class _Cold:
    """A clock that stands still while something else is computed, as between the ops of a job."""

    ROWS = (
        torch.ops.aten.mm.default,
        torch.ops.aten.native_layer_norm.default,
        torch.ops.aten.exp.default,
    )

    def __init__(self, nbytes: int) -> None:
        self._square = torch.full((64, 64), 0.5)
        # Read and written twice.
        self._x = torch.full((max(1, nbytes // 16 // 64), 64), 0.5)
        self._step = torch.zeros(STEP_BYTES // 4)
        self._lost = 0

    def long_before(self) -> None:
        """A step that does this for the first time comes to it."""
        self._step.add_(1)

    def let_go(self) -> None:
        """Its memory, whoever still knows of it: the job may need every byte."""
        self._step = self._square = self._x = torch.empty(0)

    def now(self) -> int:
        return time.thread_time_ns() - self._lost

    def between(self, _: object = None) -> None:
        begin = time.thread_time_ns()
        torch.mm(self._square, self._square)
        torch.native_layer_norm(self._x, (64,), None, None, 1e-5)
        self._x.exp()
        self._lost += time.thread_time_ns() - begin


class _Job:
    """A forward of a few calls, and its backward, plainly and under a program."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.plain_ns: list[int] = []  # by round
        self.planned_ns: list[int] = []
        self.call_ns: list[int] = []  # of a call that is made again
        self.x = torch.ones(1)
        self._target = torch.zeros(length)

    def forward(self, cold: _Cold) -> list[Tensor]:
        raise NotImplementedError

    def program(self, cold: _Cold) -> Program:
        raise NotImplementedError

    def round(self, cold: _Cold, tape: Tape) -> None:
        """One of each. Not timed is one before them, or the first would pay for coming after
        another job."""
        self._backward(self.forward(cold))
        cold.long_before()
        begin = cold.now()
        self._backward(self.forward(cold))
        self.plain_ns.append(cold.now() - begin)
        cold.long_before()
        begin = cold.now()
        run = tape.begin()
        with tape.region():
            made = self.forward(cold)
        self._backward(made)
        run.finish()
        self.planned_ns.append(cold.now() - begin)

    def _backward(self, made: list[Tensor]) -> None:
        if made:
            # Some calls between forward and backward, as for a loss: they are looked at (watch.py).
            torch.nn.functional.mse_loss(made[0], self._target).backward()
            self.x.grad = None


class _Looks(_Job):
    """Measures calls that the tape only looks at."""

    row = Row(torch.ops.aten.neg.default, 0)

    def forward(self, cold: _Cold) -> list[Tensor]:
        for _ in range(self.length):
            self.row.func(self.x)
            cold.between()
        return []

    def program(self, cold: _Cold) -> Program:
        rows = (self.row, *(Row(func, 0) for func in cold.ROWS)) * self.length
        return Program(rows, ((0, len(rows)),), (), (), (), (), (), replays=1)


class _Writes(_Looks):
    """Measures calls that write in place."""

    row = Row(torch.ops.aten.neg_.default, 0, plain=False, writes=True)


class _Saves(_Job):
    """Pairs of calls of which the second one saves what the first one made: that is given up and
    made again, of all pairs in so many bursts. 0: it is kept."""

    def __init__(self, length: int, bursts: int) -> None:
        super().__init__(length)
        self.x.requires_grad_()
        self.bursts = bursts
        self._other = torch.ones(1)

    def forward(self, cold: _Cold) -> list[Tensor]:
        made = []
        for _ in range(self.length):
            begin = cold.now()
            z = torch.atan2(self.x, self._other)
            self.call_ns.append(cold.now() - begin)
            cold.between()
            y = z.abs()
            y.register_hook(cold.between)
            cold.between()
            made.append(y)
        return [torch.cat(made)]

    def program(self, cold: _Cold) -> Program:
        saved, events = self._order(cold)
        again = bool(self.bursts)
        rows: list[Row] = []
        for op in range(self.length):
            row = Row(torch.ops.aten.atan2.default, op)
            if again:
                row.plain, row.replays, row.cells = False, 1, (op,)
                row.first_life_reads = (-1, -1)
            for call in (row, Row(torch.ops.aten.abs.default, self.length)):
                rows += [call, *(Row(func, self.length) for func in cold.ROWS)]
        rows.append(Row(torch.ops.aten.cat.default, self.length))
        # Of a pair the slots are x and the other of atan2, in some order, and then z.
        slots = tuple(again and n % 3 == 2 for n in range(saved))
        bursts: list[tuple[Replay, ...]] = [()] * len(events)
        wanted = [at for at, slot in enumerate(events) if slots[slot]]
        replays = [Replay(events[at] // 3, {events[at] // 3: 1}) for at in wanted]
        for at, replay in zip(wanted, replays, strict=True):
            bursts[at] = (replay,)
        if self.bursts == 1:
            bursts = [tuple(replays) if wanted[0] == at else () for at in range(len(events))]
        return Program(
            rows=tuple(rows),
            regions=((0, len(rows)),),
            slots=slots,
            versions=(1,) * saved,
            events=tuple(events),
            event_ops=(self.length,) * len(events),
            bursts=tuple(bursts),
            replays=max(1, len(replays)),
        )

    def _order(self, cold: _Cold) -> tuple[int, list[int]]:
        """How many tensors autograd saves, and the order in which it wants them back."""
        kept: list[Tensor] = []
        events: list[int] = []

        def pack(tensor: Tensor) -> int:
            kept.append(tensor.detach())
            return len(kept) - 1

        def unpack(slot: int) -> Tensor:
            events.append(slot)
            return kept[slot]

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            made = self.forward(cold)
        self._backward(made)
        return len(kept), events


def _extra(jobs: list[_Job], cold: _Cold) -> list[float]:
    """What each job costs more under its program."""
    tapes = [Tape(job.program(cold)) for job in jobs]
    for number in range(ROUNDS + 1):
        for job, tape in zip(jobs, tapes, strict=True):
            job.round(cold, tape)
            if number == 0:  # warms up
                job.plain_ns.clear()
                job.planned_ns.clear()
                job.call_ns.clear()
    return [min(job.planned_ns) - min(job.plain_ns) for job in jobs]


def _call_ns(job: _Job, cold: _Cold) -> float:
    """What the calls take that are made again, as the times of a step graph have it: from outside
    Python where the compiled half of the tape can look (op_times.py)."""
    found = list(job.call_ns)
    library = compiled_half()
    for _ in range(ROUNDS if library is not None and library.clock(True) else 0):
        job.forward(cold)
    if library is not None:
        clocked = [took for name, _, took in library.clocked() if name == "aten::atan2"]
        found = clocked or found
    return median(found)
