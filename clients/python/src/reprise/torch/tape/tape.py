# SPDX-License-Identifier: Apache-2.0
"""Runs a training step under a plan: op by op, in eager mode, the model untouched.

    tape = Tape(program)
    run = tape.begin()                    # a step
    with tape.region(): model(x)          # the root's forward
    ...loss, backward, optimizer...
    counts = run.counts

Inside the root's forward a dispatch mode compares every op with the captured sequence, records
the calls that will be replayed, and saved-tensor hooks keep or give up what autograd saves. In the
backward only the unpack hook works: just before an event of the program it replays the burst that
stands there, then hands out the tensor. The native engine (compiled/fast.cc) does this where it is
built, for a whole step; else the one in Python (python_engine.py).

What must stay true: gradients are those of the plain program, whatever the plan. Records hold
what really ran; the program only says what to hold and when to let go. At the first op out of step
the run *disarms*: from there on everything is kept. At the first unpack out of step, or when the
graph is to be kept for another backward, the run turns *safe*: nothing more is let go and what is
missing is made on demand. test_tape.py and test_out_of_step.py hold it to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from reprise.marks import At, ignore_end
from reprise.torch.compiled import fast
from reprise.torch.compiled.shortcut import prepare
from reprise.torch.internals.guard import surely
from reprise.torch.internals.host import HostSaves
from reprise.torch.internals.modes import Mode, Op
from reprise.torch.internals.open_hooks import Hooks
from reprise.torch.internals.ops import IGNORED, PLAIN_TYPES, mutated_positions
from reprise.torch.internals.stale import refuse_modified, refuse_stale
from reprise.torch.internals.watch import close_watches, watch
from reprise.torch.tape.native_program import Compiled
from reprise.torch.tape.program import Program
from reprise.torch.tape.tape_run import Counts, Run, unpack

__all__ = ["Counts", "Run", "Tape", "compiled_half", "unpack"]


def compiled_half() -> Any:
    """The module of the native engine, its gate in place; None: it is not here."""
    return fast.load(unpack, refuse_stale, refuse_modified)


class Tape(Mode):
    """The dispatch mode of a planned forward."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays compiled; before it runs, this mode leaves (`step_aside`)."""
        return True

    def __init__(self, program: Program, device: torch.device | None = None) -> None:
        """`device`: where the model is; streams are looked at on a GPU."""
        super().__init__()
        self.program = program
        self._device = device if device is not None and device.type == "cuda" else None
        # What lies over the forward that runs: the gate, all else, and of that the hooks.
        self._laid: tuple[ExitStack, ExitStack, Any] | None = None
        prepare()
        self._compiled = Compiled.of(program, unpack, refuse_stale, refuse_modified)
        # By program, of Python or compiled: slot and event that the last forward of a step begins
        # with; None: it does not stand alone.
        self._last: dict[int, tuple[int, int] | None] = {}
        self._run = self.begin()

    def begin(
        self,
        counts: Counts | None = None,
        host: HostSaves | None = None,
        at: At = ignore_end,
        here: int = 0,
    ) -> Run:
        """A step begins; what an unfinished one left is forgotten with its graph. With the counts
        of a run that is spent the step goes on. `host`: what a mismatch keeps is kept there; the
        step runs in Python then. `at` is called with 1 + op, `here` is the address of the same in
        C, for ops that never come to Python."""
        native = self._compiled if host is None else None
        self._run = Run(self.program, counts, native, at, here, self._device)
        self._run.host = host
        return self._run

    def begin_more(
        self, spent: Run, host: HostSaves | None, at: At = ignore_end, here: int = 0
    ) -> Run:
        """A forward more than captured is about to run, and all before it are over: runs as the
        last one did, beside whose saved tensors gradients are alive, too. Where that one cannot be
        told from those before it, as the whole step."""
        run = self.begin(spent.counts, host, at, here)
        if spent.native is None:
            run.in_python()  # a step runs in one engine
        last = self._last.get(id(run.program))
        if last is not None and (run.native is None or fast.alone()):
            run.region = len(run.program.regions) - 1
            run.engine.slot, run.engine.cursor = last
        return run

    @property
    def hooked(self) -> int:
        """Saved tensors of a step that go through the hooks."""
        return len(self.program.events if self._compiled is None else self._compiled.program.events)

    @contextmanager
    def region(self) -> Iterator[None]:
        """Runs a forward of the root under the tape."""
        run, program = self._run, self.program
        close_watches()
        if not program.replays:
            # Everything is kept: there is nothing to do, nothing to check, nothing to pay.
            run.region = len(program.regions)
            yield
            return
        if not run.region and not fast.alone():
            run.in_python()  # somebody else looks at every op, too
        number = run.region
        engine = run.engine
        slot = engine.slot
        if number >= len(program.regions):
            run.mismatch(f"forward {number + 1} of a step captured with {len(program.regions)}")
            first = end = 0
        else:
            first, end = program.regions[number]
            engine.next = first
            if 0 < number == len(program.regions) - 1 and run.armed:
                known = id(run.program)
                if known not in self._last:
                    self._last[known] = run.alone(number)
        run.region = number + 1
        try:
            with ExitStack() as laid, ExitStack() as gate:
                hooks = self._hooks(run)
                for layer in (hooks, self._ground(run), self):
                    laid.enter_context(layer)
                gate.enter_context(self._opened(run))
                self._laid = gate, laid, hooks
                yield
        except BaseException:
            # A forward that fails and is tried again starts over.
            run.region, engine.slot = number, slot
            raise
        finally:
            self._laid = None
        if run.armed and engine.next != end:
            run.mismatch(f"the forward ended after {engine.next - first} of {end - first} ops")
        if run.waits():
            watch(run)

    def step_aside(self, why: str) -> None:
        """Takes everything off for the rest of the forward that runs: what comes next must run as
        if nobody looked. What was given up so far is still made again when the backward asks for
        it, so writes to what that needs are watched. Under a mode or hooks of the program all stays
        where it is, and keeps everything."""
        run, laid = self._run, self._laid
        run.mismatch(why)
        if laid is None or _get_current_dispatch_mode_stack()[-1:] != [self]:
            return
        gate, rest, hooks = laid
        gate.close()
        if not hooks.on_top:
            return
        self._laid = None
        rest.close()
        if run.waits():
            watch(run)

    @staticmethod
    def _hooks(run: Run) -> Any:
        if run.native is None:
            return Hooks(run.pack, unpack)
        return Hooks(run.engine.pack, run.native.module.unpack)

    @staticmethod
    def _ground(run: Run) -> Any:
        return nullcontext() if run.native is None else fast.Ground()

    @contextmanager
    def _opened(self, run: Run) -> Iterator[None]:
        """Ops go through the gate, where there is one."""
        gate = None if run.native is None else run.native.module
        if gate is None or not gate.open(run.engine):
            yield
            return
        self.gate = gate
        try:
            yield
        finally:
            self.gate = None
            surely(gate.close)

    def op(self, op: Op, types: Any) -> Any:
        if types and not PLAIN_TYPES.issuperset(types):
            return NotImplemented  # it takes the call apart, and what is inside comes here
        run, func = self._run, op.func
        engine = run.engine
        if engine.armed:
            rows = self.program.rows
            at = engine.next
            row = rows[at] if at < len(rows) else None
            if row is not None and row.func is func and not run.strays(row):
                engine.next = at + 1
                run.at(row.op + 1)
                return op.run() if row.plain else run.special(at, op)
            if func in IGNORED:
                return op.run()
            number = row.op if row is not None else None
            name = f"op {at if number is None else number}"
            if row is not None and row.func is func:
                what = f"{name}, {func}, runs on a different stream than in the capture"
            else:
                what = f"{name} is {func}, captured was {row.func if row else 'the end'}"
            run.mismatch(what, number)
        if mutated_positions(func):
            return run.written(op)
        return op.run()

    def failed(self) -> None:
        """Keeps everything from here on, after an internal error."""
        self._run.mismatch("an internal error in Reprise")
