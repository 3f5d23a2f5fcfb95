# SPDX-License-Identifier: Apache-2.0
"""What the tape itself costs on this machine: measured, not assumed.

    costs = measured_costs()
    costs.replay_ns                    # per recorded and replayed call, beyond the call itself
    costs.armed_ns(tape)               # per step, for looking at every op and every saved tensor

Runs chains of the smallest op there is, plainly and under programs written by hand, in some fifty
milliseconds. CPU time of this thread, so that a busy machine is not taken for a slow one; on a GPU
it is what the host does, which hides behind the device when that is the bottleneck.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from reprise.torch.program import Burst, Program, Replay, Row
from reprise.torch.tape import Tape

__all__ = ["Costs", "measured_costs"]

# In a chain Python and its data stay in the caches; in a step the ops in between throw them out.
# Measured in the networks of the zoo and the headline on a busy machine, an op costs three times
# what it does in a chain, a replay five.
COLD, COLD_PYTHON = 3, 5
LENGTH = 32
ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one op of a planned forward, of one saved tensor that goes through the hooks, of one
    replay."""

    op_ns: int
    saved_ns: int
    replay_ns: int

    def armed_ns(self, tape: Tape) -> int:
        """What a step under this tape pays whatever it replays."""
        program = tape.program
        if not program.replays:
            return 0
        return self.op_ns * len(program.rows) + self.saved_ns * tape.hooked


@cache
def measured_costs() -> Costs:
    """Once per process."""
    if torch.is_inference_mode_enabled():
        return Costs(0, 0, 0)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        saves, saves_nothing = torch.ops.aten.sin.default, torch.ops.aten.neg.default
        unseen, looked_at, plain, kept, given_up = _best(
            (Tensor.neg, None),
            (Tensor.neg, _program(saves_nothing, saved=False, again=0)),
            (Tensor.sin, None),
            (Tensor.sin, _program(saves, saved=True, again=1)),
            (Tensor.sin, _program(saves, saved=True, again=LENGTH - 1)),
        )
    op = max(0, looked_at - unseen)
    # The forward of the chain is about a third of it: that much is the call itself.
    replay = (given_up - kept) / (LENGTH - 2) - plain / LENGTH / 3
    return Costs(
        op_ns=COLD * op // LENGTH,
        saved_ns=COLD * max(0, kept - plain - op) // LENGTH,
        replay_ns=COLD_PYTHON * max(op // LENGTH, int(replay)),
    )


def _program(func: object, *, saved: bool, again: int) -> Program:
    """A chain of LENGTH calls of which the first `again` are given up and run once more, at the
    first unpack. With `saved` each call saves its input."""
    rows = []
    for op in range(LENGTH):
        row = Row(func, op)
        if op < again:
            row.plain, row.replays, row.cells = False, 1, (op,)
            row.first_life_reads = (0 if op else -1,)
        rows.append(row)
    # What call n saves is what call n - 1 made: given up if that one runs again.
    slots = tuple(0 < n <= again for n in range(LENGTH)) if saved else ()
    replays: Burst = tuple(Replay(op, {op: 2 if op + 1 < again else 1}) for op in range(again))
    events = tuple(reversed(range(len(slots))))
    return Program(
        rows=tuple(rows),
        regions=((0, LENGTH),),
        slots=slots,
        versions=tuple(1 for _ in slots),
        events=events,
        event_ops=tuple(LENGTH - 1 for _ in events),
        bursts=tuple(replays if n == 0 else () for n in range(len(events))),
        replays=max(1, again),
    )


def _best(*chains: tuple[Callable[[Tensor], Tensor], Program | None]) -> list[int]:
    """CPU time of a forward and backward of each chain, taken in turns."""
    best = [1 << 62] * len(chains)
    tapes = [None if program is None else Tape(program) for _, program in chains]
    x = torch.ones(1, requires_grad=True)
    for _ in range(ROUNDS):
        for number, (call, _) in enumerate(chains):
            best[number] = min(best[number], _once(call, tapes[number], x))
    return best


def _once(call: Callable[[Tensor], Tensor], tape: Tape | None, x: Tensor) -> int:
    begin = time.thread_time_ns()
    if tape is None:
        _chain(call, x).backward()
        return time.thread_time_ns() - begin
    run = tape.begin()
    with tape.region():
        y = _chain(call, x)
    y.backward()
    run.finish()
    return time.thread_time_ns() - begin


def _chain(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    for _ in range(LENGTH):
        x = call(x)
    return x
