# SPDX-License-Identifier: Apache-2.0
"""Runs a training step under a plan, op by op, in eager mode, without changing the model.

    tape = Tape(program)
    run = tape.begin()                    # a step
    with tape.region(): model(x)          # the root's forward
    ...loss, backward, optimizer...
    counts = run.counts

Inside the root's forward a dispatch mode compares every op with the captured sequence and records
the calls that will be replayed; saved-tensor hooks keep or discard what autograd saves. In the
backward only the unpack hook is active: before an event of the program it replays the burst of that
event, then returns the tensor. The native engine (compiled/fast.cc) does this for a whole step if
it is built, otherwise the one in Python (python_engine.py); `renew` changes over between two steps.

The invariant: gradients are those of the plain program, whatever the plan. Records hold what really
ran; the program only says what to hold and when to free it. At the first op out of order the run
*disarms*: from then on everything is kept. At the first unpack out of order, or when the graph is
kept for another backward, the run becomes *safe*: nothing more is freed, and what is missing is
recomputed on demand. test_tape.py and test_out_of_step.py check this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from reprise.agent.marks import At, ignore_end
from reprise.base.errors import RepriseError
from reprise.torch.compiled import fast
from reprise.torch.compiled.shortcut import prepare
from reprise.torch.internals.calls import leave
from reprise.torch.internals.modes import Mode, Op
from reprise.torch.internals.open_hooks import Hooks, for_parts
from reprise.torch.internals.ops import IGNORED, PLAIN_TYPES, may_write
from reprise.torch.internals.watch import close_watches, resume, tell, waiting, watch
from reprise.torch.offload.tier import Tier
from reprise.torch.tape.native_program import Compiled
from reprise.torch.tape.optimizer_state import StateOnHost
from reprise.torch.tape.parked import Parked
from reprise.torch.tape.program import Program
from reprise.torch.tape.tape_run import Counts, Run, unpack


def native_engine() -> Any:
    """Returns the module of the native engine, with its gate installed; None if there is none."""
    return fast.load(unpack)


class Tape(Mode):
    """The dispatch mode of a planned forward."""

    supports_higher_order_operators = True

    tells_writes = True  # to runs of earlier steps (watch.py)

    def __init__(
        self, program: Program, device: torch.device | None = None, tier: Tier | None = None
    ) -> None:
        """`device` is where the model is; on a GPU its streams are checked. `tier`: where storages
        go that the program sends away. Raises RepriseError if there is no room for them."""
        super().__init__()
        self.program = program
        if program.places and tier is None:
            raise RepriseError("the plan uses host memory, and there is none")
        self._tier = tier
        self._slab = tier.slab(program.host_bytes) if tier and program.places else None
        self.state: StateOnHost | None = None  # of optimizers, which steps send to the host
        if program.state and device and tier and self._slab:
            first = program.first_state
            self.state = StateOnHost(program.state, first, device, tier, self._slab)
        self._device = device if device is not None and device.type == "cuda" else None
        # What surrounds the current forward, the innermost last, and whether `step_aside` may take
        # it off: the saved-tensor hooks are among it.
        self._surrounding: list[Any] = []
        self._packs = False
        self._below = fast.BelowGate()
        self._take_engine()
        # Earlier runs that may still be recomputed, and are told what the current forward writes.
        self._others: list[Any] = []
        # By program, of either engine: slot and event with which the last forward of a step begins;
        # None if it depends on earlier forwards.
        self._last: dict[int, tuple[int, int] | None] = {}
        self.run = self.begin()  # of the newest step

    def _take_engine(self) -> None:
        """Converts the program for the native engine, if there is one that can run it."""
        prepare()
        waits = fast.being_built() and bool(self.program.replays)
        self._compiled = Compiled.of(self.program, unpack)
        self._waits = waits and self._compiled is None

    def renew(self) -> None:
        """Takes the native engine if it has been built since the tape was made. Called between two
        steps."""
        if self._waits and not fast.being_built():
            self._take_engine()

    @property
    def in_python(self) -> str:
        """Why steps run in the Python engine; "" if they do not, or if nothing is replayed."""
        if self._compiled is not None or not self.program.replays:
            return ""
        return fast.why_python()

    def begin(
        self,
        counts: Counts | None = None,
        at: At = ignore_end,
        here: int = 0,
    ) -> Run:
        """Begins a step and returns its run. What an unfinished step has left is freed with its
        graph.

        `counts` of a spent run continue the same step. `at` is called with 1 + op; `here`
        is the address of the same function in C, for ops that never reach Python."""
        parked = None
        if self._tier is not None and self._slab is not None:
            parked = Parked(self.program.places, self._tier, self._slab, self.state)
        self.run = Run(self.program, counts, self._compiled, at, here, self._device, parked)
        return self.run

    def begin_more(self, spent: Run, at: At = ignore_end, here: int = 0) -> Run:
        """Begins the part of a step that has more forwards than captured, after all captured ones
        are over; returns its run. It runs as the last captured forward did, because gradients are
        alive then, too; if that forward depends on earlier ones, it runs as the whole step."""
        run = self.begin(spent.counts, at, here)
        if spent.native is None:
            run.in_python()  # a step runs in one engine
        last = self._last.get(id(run.program))
        if last is not None and (run.native is None or fast.alone()):
            run.region = len(run.program.regions) - 1
            run.engine.slot, run.engine.cursor = last
        return run

    @property
    def hooked(self) -> int:
        """How many saved tensors of a step go through the hooks."""
        return len(self.program.events if self._compiled is None else self._compiled.program.events)

    @contextmanager
    def region(self, *, packs: bool = True) -> Iterator[None]:
        """Runs a forward of the root under the tape. `packs`: with its saved-tensor hooks; without
        them, those of a capture call the run."""
        run, program = self.run, self.program
        close_watches()
        if not program.replays:
            # Everything is kept, so there is nothing to do and nothing to check.
            run.region = len(program.regions)
            resume()
            yield
            return
        if not run.region and not fast.alone():
            run.in_python()  # another dispatch mode observes every op, too
        number = run.enters()
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
        self._packs = packs
        layers = self._surrounding = []
        try:
            try:
                if packs:
                    hooks = self._hooks(run)
                    hooks.__enter__()
                    layers.append(hooks)
                if run.native is not None:
                    self._below.__enter__()
                    layers.append(self._below)
                self.__enter__()
                layers.append(self)
                self._others = waiting(run)
                if run.native is not None:
                    self._open_gate(run)
                yield
            finally:
                self.close_gate()
                leave(layers)
        except BaseException:
            # If a failed forward is tried again, it starts over.
            run.region, engine.slot = number, slot
            if run.parked is not None:
                run.parked.drain()
            raise
        finally:
            self._others = []
            run.left()
        if run.armed and engine.next != end:
            run.mismatch(f"the forward ended after {engine.next - first} of {end - first} ops")
        run.over(number)
        self._watch(run)

    def step_aside(self, why: str) -> None:
        """Removes the mode, the hooks and the gate for the rest of the current forward, so that
        what follows runs unobserved. The backward may still recompute what was discarded so far, so
        writes to its inputs are watched. Under a mode or hooks of the program nothing can be
        removed: then everything stays in place and keeps all saved tensors."""
        run, layers = self.run, self._surrounding
        run.mismatch(why)
        if not (layers and self._packs and self.on_top()):
            return
        self.close_gate()
        if layers[0].on_top:
            leave(layers)
            self._watch(run)

    @staticmethod
    def _watch(run: Run) -> None:
        """Watches what the program writes after a forward, as long as anything of this run or of an
        earlier one may be recomputed."""
        if run.waits():
            watch(run)
        else:
            resume()

    @staticmethod
    def _hooks(run: Run) -> Any:
        if run.native is None:
            hooks: tuple[Any, Any] = run.pack, unpack
        else:
            hooks = run.engine.pack, run.native.module.unpack
        return Hooks(*(for_parts(*hooks) if run.program.wrapped else hooks))

    def _open_gate(self, run: Run) -> None:
        """Opens the gate of the native engine: ops then go through it."""
        gate = run.gate
        if gate.open(run.engine):
            self.gate = gate
            if self._others:
                gate.tell([other.hears for other in self._others])

    def op(self, op: Op, types: Any) -> Any:
        """Runs an op, and compares it with the captured sequence."""
        if FakeTensor in types:
            return op.run()  # a DTensor finds out the shape of a result
        if types and not PLAIN_TYPES.issuperset(types):
            return NotImplemented  # a subclass makes inner calls, which come here
        run, func = self.run, op.func
        engine = run.engine
        if self._others:
            tell(self._others, func, op.args, op.kwargs)
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
            run.mismatch(what, number, ran_on=row is None)
        if may_write(func):
            return run.written(op)
        return op.run()

    def failed(self) -> None:
        """Keeps everything from here on, after an internal error."""
        self.run.mismatch("an internal error in Reprise")
