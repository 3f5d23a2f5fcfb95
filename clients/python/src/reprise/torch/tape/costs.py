# SPDX-License-Identifier: Apache-2.0
"""Measures what the tape itself costs on this machine.

    costs = measured_costs(touched_bytes)   # what an op of the job's forward reads and writes
    costs.replay_ns                         # per recorded and replayed call, beyond the call itself
    costs.armed_ns(tape)                    # per step, for checking ops and saved tensors

Runs sequences of the smallest ops there are, plainly and under handwritten programs, with the tape
that planned steps run on. In a job the ops in between evict Python, the tape and its data from the
caches, so a call costs several times what it costs alone. So other ops run in between that touch as
many bytes as an op of the job, and their time is subtracted.

Of several rounds the fastest planned and the fastest plain one count. The measurement is made once
per machine and size (costs_kept.py). It takes the CPU time of this thread, which other processes
can only increase; on a GPU this is the work of the host, which hides behind the device if the
device is the bottleneck.
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
from reprise.torch.tape.program import Event, Program, Replay, Row
from reprise.torch.tape.tape import Tape, native_engine

SHORT, LENGTH = 3, 39
ROUNDS = 12
# With more processes than cores every parallel kernel waits for its other threads: seconds become
# minutes. After so long the rounds that have ended count, and nothing is kept on disk.
MOST_S = 5.0
# What a core's own caches hold: touching more bytes evicts nothing else.
MOST_BYTES = 1 << 18
# From one step to the next, everything that is used once per step is evicted: bytes to touch.
STEP_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs per op of a planned forward, per saved tensor that goes through the hooks, per replay,
    per op that writes in place (in addition to `op_ns`), and per forward."""

    op_ns: int
    saved_ns: int
    replay_ns: int
    write_ns: int = 0
    enter_ns: int = 0

    def armed_ns(self, tape: Tape) -> int:
        """Returns what a step under this tape costs in addition to its replays."""
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
    """Returns the costs of the tape for ops that touch this many bytes, rounded to a power of two.
    Measures them once per machine and size."""
    size = 1 << round(log2(max(1, touched_bytes)))
    return _measured(min(size, MOST_BYTES))


@cache
def _measured(touched_bytes: int) -> Costs:
    """Returns the costs kept on disk, or measures and keeps them."""
    if torch.is_inference_mode_enabled():
        return Costs(0, 0, 0)
    kept = KeptCosts("Python" if native_engine() is None else "compiled")
    known = kept.find(touched_bytes)
    if known is not None and set(known) == set(Costs.__slots__):
        return Costs(**known)
    costs, is_whole = _measure(touched_bytes)
    if is_whole:
        kept.keep(touched_bytes, asdict(costs))
    return costs


def _measure(touched_bytes: int) -> tuple[Costs, bool]:
    """Measures the costs for ops that touch this many bytes. Returns them, and whether there was
    time for all rounds."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        jobs: list[_Job] = [_Looks(SHORT), _Looks(2 * LENGTH), _Writes(2 * LENGTH)]
        jobs += [_Saves(n, again=again) for again in (False, True) for n in (SHORT, LENGTH)]
        cold = _ColdCaches(touched_bytes)
        (short, looks, writes, few, kept, few_again, again), is_whole = _extra(jobs, cold)
        call = _call_ns(jobs[-1], cold)
        cold.free()
    more = LENGTH - SHORT
    op = max(0.0, (looks - short) / (more + LENGTH))
    pair = max(2 * op, (kept - few) / more)  # two ops, three saved tensors
    # The same pair with one of the tensors recomputed; the rest is paid once per forward.
    made_again = max(pair, (again - few_again) / more)
    costs = Costs(
        op_ns=int(op),
        saved_ns=int((pair - 2 * op) / 3),
        replay_ns=int(max(op, made_again - pair - call)),
        write_ns=int(max(0.0, (writes - looks) / LENGTH / 2)),
        enter_ns=int(max(0.0, few_again - SHORT * made_again)),
    )
    return costs, is_whole


class _ColdCaches:
    """Computes what other ops would between two ops of a job, on a clock that does not count it."""

    ROWS = (
        torch.ops.aten.mm.default,
        torch.ops.aten.native_layer_norm.default,
        torch.ops.aten.exp.default,
    )

    def __init__(self, nbytes: int) -> None:
        self._square = torch.full((64, 64), 0.5)
        # A quarter of the bytes: the tensor is read twice, and two of its size are written.
        self._x = torch.full((max(1, nbytes // 16 // 64), 64), 0.5)
        self._step = torch.zeros(STEP_BYTES // 4)
        self._lost = 0

    def evict(self) -> None:
        """Evicts what only the previous step has used."""
        self._step.add_(1)

    def free(self) -> None:
        """Frees its memory even if somebody still refers to it, because the job may need every
        byte."""
        self._step = self._square = self._x = torch.empty(0)

    def now(self) -> int:
        """Returns the CPU time of this thread without the time spent in `between`."""
        return time.thread_time_ns() - self._lost

    def between(self, _: object = None) -> None:
        """Runs ops as a job does between two ops, and excludes their time."""
        begin = time.thread_time_ns()
        torch.mm(self._square, self._square)
        torch.native_layer_norm(self._x, (64,), None, None, 1e-5)
        self._x.exp()
        self._lost += time.thread_time_ns() - begin


class _Job:
    """A forward of a few calls and its backward, run plainly and under a program."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.plain_ns: list[int] = []  # by round
        self.planned_ns: list[int] = []
        self.call_ns: list[int] = []  # of a call that is replayed
        self.x = torch.ones(1)
        self._target = torch.zeros(length)

    def forward(self, cold: _ColdCaches) -> list[Tensor]:
        """Runs the calls; returns what the backward starts from."""
        raise NotImplementedError

    def program(self, cold: _ColdCaches) -> Program:
        """Returns the program for this forward."""
        raise NotImplementedError

    def round(self, cold: _ColdCaches, tape: Tape) -> None:
        """Measures one plain and one planned step. A plain one runs before them without being
        measured, or the first would pay for coming after another job."""
        self._backward(self.forward(cold))
        cold.evict()
        begin = cold.now()
        self._backward(self.forward(cold))
        self.plain_ns.append(cold.now() - begin)
        cold.evict()
        begin = cold.now()
        run = tape.begin()
        with tape.region():
            made = self.forward(cold)
        self._backward(made)
        run.finish()
        self.planned_ns.append(cold.now() - begin)

    def _backward(self, made: list[Tensor]) -> None:
        """Runs a loss and the backward, if the forward made anything."""
        if made:
            # Calls between forward and backward, as for a loss, are watched too (watch.py).
            torch.nn.functional.mse_loss(made[0], self._target).backward()
            self.x.grad = None


class _Looks(_Job):
    """Measures calls that the tape only compares with the captured ones."""

    row = Row(torch.ops.aten.neg.default, 0)

    def forward(self, cold: _ColdCaches) -> list[Tensor]:
        for _ in range(self.length):
            self.row.func(self.x)
            cold.between()
        return []

    def program(self, cold: _ColdCaches) -> Program:
        """Returns the program in which each call is compared and none is recomputed."""
        rows = (self.row, *(Row(func, 0) for func in cold.ROWS)) * self.length
        return Program(rows, ((0, len(rows)),), (), (), (), (), replays=1)


class _Writes(_Looks):
    """Measures calls that write in place."""

    row = Row(torch.ops.aten.neg_.default, 0, plain=False, writes=True)


class _Saves(_Job):
    """Measures pairs of calls of which the second saves what the first one made. That tensor is
    kept, or, if `again`, discarded and recomputed."""

    def __init__(self, length: int, *, again: bool) -> None:
        super().__init__(length)
        self.x.requires_grad_()
        self.again = again
        self._other = torch.ones(1)

    def forward(self, cold: _ColdCaches) -> list[Tensor]:
        """Runs the pairs; returns one output, whose backward reads all that was saved."""
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

    def program(self, cold: _ColdCaches) -> Program:
        """Returns the program in which what the pairs saved is kept or recomputed."""
        saved, order = self._order(cold)
        rows: list[Row] = []
        for op in range(self.length):
            row = Row(torch.ops.aten.atan2.default, op)
            if self.again:
                row.plain, row.replays, row.cells = False, 1, (op,)
                row.first_life_reads = (-1, -1)
            for call in (row, Row(torch.ops.aten.abs.default, self.length)):
                rows += [call, *(Row(func, self.length) for func in cold.ROWS)]
        rows.append(Row(torch.ops.aten.cat.default, self.length))
        # The slots of a pair: the two inputs of atan2, in some order, and then z.
        slots = tuple(self.again and n % 3 == 2 for n in range(saved))
        bursts = [(Replay(slot // 3, {slot // 3: 1}),) for slot in order if slots[slot]]
        numbers = iter(range(len(bursts)))
        events = [
            Event(slot, self.length, (next(numbers),) if slots[slot] else ()) for slot in order
        ]
        return Program(
            rows=tuple(rows),
            regions=((0, len(rows)),),
            slots=slots,
            versions=(1,) * saved,
            events=tuple(events),
            bursts=tuple(bursts),
            replays=max(1, len(bursts)),
        )

    def _order(self, cold: _ColdCaches) -> tuple[int, list[int]]:
        """Returns how many tensors autograd saves, and the order in which it unpacks them."""
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


def _extra(jobs: list[_Job], cold: _ColdCaches) -> tuple[list[float], bool]:
    """Returns by job how much longer it takes under its program, and whether there was time for all
    rounds."""
    tapes = [Tape(job.program(cold)) for job in jobs]
    end = time.monotonic() + MOST_S
    rounds = 0
    for number in range(ROUNDS + 1):
        if number > 1 and time.monotonic() > end:
            break
        rounds = number
        for job, tape in zip(jobs, tapes, strict=True):
            job.round(cold, tape)
            if number == 0:  # warms up
                job.plain_ns.clear()
                job.planned_ns.clear()
                job.call_ns.clear()
    extra: list[float] = [min(job.planned_ns) - min(job.plain_ns) for job in jobs]
    return extra, rounds == ROUNDS


def _call_ns(job: _Job, cold: _ColdCaches) -> float:
    """Returns the time of the calls that are replayed, as the step graph would have it: measured by
    the native engine if it can, otherwise from Python (op_times.py)."""
    found = list(job.call_ns)
    library = native_engine()
    for _ in range(ROUNDS if library is not None and library.clock(True) else 0):
        job.forward(cold)
    if library is not None:
        clocked = [took for name, _, took in library.clocked() if name == "aten::atan2"]
        found = clocked or found
    return median(found)
