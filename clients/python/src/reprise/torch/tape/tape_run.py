# SPDX-License-Identifier: Apache-2.0
"""One step under a program: its position, and what it does when something differs from the capture.

    run = Run(program)                    # made by Tape.begin
    run.special(number, op)               # a call that is recorded, or that writes
    packed = run.pack(tensor)             # what autograd keeps of a saved tensor
    tensor = unpack(packed)               # in the backward: replays what comes before it

An engine records the calls and runs them again: the native one (compiled/fast.cc) or the one in
Python (python_engine.py). It is chosen before the first forward of the step and runs the step to
its end. The decisions made here hold for both. An armed run discards what the program says; after
the first op out of order everything is kept. A safe run frees nothing any more, and what is missing
is recomputed on demand.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reprise.agent.marks import At, ignore_end
from reprise.torch.check.control import Control
from reprise.torch.check.values import Audit, Given
from reprise.torch.internals.engine import graph_is_kept
from reprise.torch.internals.guard import again, caught, described, told
from reprise.torch.internals.modes import Op
from reprise.torch.internals.ops import all_written_by, tensors_in
from reprise.torch.internals.saved_hooks import GONE, refuse_stale
from reprise.torch.internals.subclass import saved_alias, version_of
from reprise.torch.internals.watch import close_watches
from reprise.torch.meter.state import stream_of
from reprise.torch.meter.windows import OpRecorder
from reprise.torch.tape.native_program import Compiled
from reprise.torch.tape.parked import Parked
from reprise.torch.tape.program import Event, Program, Row, Sent
from reprise.torch.tape.python_engine import PythonEngine
from reprise.torch.tape.records import Kept, Ref


@dataclass(slots=True)
class Counts:
    """Counts of what a step did."""

    dropped: int = 0  # saved tensors that were discarded
    replayed: int = 0  # calls that were replayed as planned
    on_demand: int = 0  # calls that were replayed in addition to the plan
    mismatches: int = 0
    first_mismatch: str = ""
    first_op: int | None = None  # the op of the captured step at the mismatch, if known
    ran_on: bool = False  # the mismatch is an op after all of the captured ones
    other_forwards: bool = False  # more or fewer forwards than captured, each as planned


class _Life:
    """Lives as long as anything that autograd has saved in one forward."""

    __slots__ = ("__weakref__",)


class Run:
    """The state of one step that runs under a program."""

    def __init__(
        self,
        program: Program,
        counts: Counts | None = None,
        native: Compiled | None = None,
        at: At = ignore_end,
        here: int = 0,
        device: torch.device | None = None,
        parked: Parked | None = None,
    ) -> None:
        """`native` is the program as the native engine runs it; None means that the step runs in
        Python. `device` has streams to check; None means that there are none. `parked`: what the
        program sends to host memory; None if that is nothing."""
        self._whole = program
        self.at = at  # is told the position, for the report of a job that was killed
        self.counts = counts or Counts()
        self.native = native
        self.program = program if native is None else native.program
        self.engine: Any = (
            PythonEngine(program, self.counts)
            if native is None
            else native.track(self, here, device)
        )
        self.parked = parked
        self.engine.host = 0 if parked is None else parked.key
        self.stream: Callable[[], Any] | None = None if device is None else stream_of(device)
        self.home: Any = None if self.stream is None else self.stream()
        self._audit: Audit | None = None
        self.region = 0
        # Of the latest forward: its number, the slot and the event with which it began, and what
        # lives as long as anything that autograd has saved in it.
        self._latest: tuple[int, int, int, weakref.ref[Any]] | None = None
        # Whether a parameter was written between the forward and the backward, of which a gathered
        # one is made that replays read.
        self.changed = False

    def in_python(self) -> None:
        """Makes the Python engine run the step. Must be called before its first forward."""
        if self.native is not None:
            assert not self.region, "the step has begun in the native engine"
            self.native, self.program = None, self._whole
            self.engine = PythonEngine(self._whole, self.counts)
            self.engine.host = 0 if self.parked is None else self.parked.key
            self.audit = self._audit

    @property
    def armed(self) -> bool:
        """Whether everything has been as captured so far."""
        return bool(self.engine.armed)

    @property
    def gate(self) -> Any:
        """The module of the native engine; None if the step runs in Python."""
        return None if self.native is None else self.native.module

    @property
    def hears(self) -> Any:
        """What the gate tells of writes: the native engine, or the run where it does more."""
        direct = self.native is not None and not self.program.sources and self.parked is None
        return self.engine if direct else self

    @property
    def audit(self) -> Audit | None:
        """Compares recomputed tensors with the discarded ones; None if nothing is compared."""
        return self._audit

    @audit.setter
    def audit(self, audit: Audit | None) -> None:
        if isinstance(audit, Control):
            self.in_python()  # only this engine can run every call twice
        self._audit = audit
        self.engine.audited = audit is not None
        if self.native is None:
            self.engine.replayer.control = audit if isinstance(audit, Control) else None

    def take_audit(self) -> Audit | None:
        """Ends the comparison; returns the audit with everything that it found, or None."""
        audit, self.audit = self._audit, None
        return audit

    def given(self, tensor: Tensor) -> Given | None:
        """Returns what `compared` needs later of a tensor that is discarded now."""
        return None if self._audit is None else self._audit.keep(tensor)

    def compared(self, slot: int, made: Tensor, given: Given | None, storage: int) -> Tensor:
        """Compares a recomputed tensor with the discarded one, and returns the one to hand out."""
        if self._audit is None or given is None:
            return made
        return self._audit.compare(slot, made, given, storage, fresh=not self.engine.safe)

    def trace(self, recorder: OpRecorder) -> None:
        """Records every replay of this step as an op, with its name in the step graph."""
        self.in_python()
        replayer = self.engine.replayer
        replayer.names = {row.op: str(row.func) for row in self.program.rows}
        replayer.recorder = recorder

    def count(self, dropped: int, replayed: int, on_demand: int) -> None:
        """Adds the counts of the native engine."""
        self.counts.dropped += dropped
        self.counts.replayed += replayed
        self.counts.on_demand += on_demand

    # ---- Its forwards -------------------------------------------------------------

    def enters(self) -> int:
        """Begins a forward; returns its number among those of the step. One whose graph was dropped
        before its backward is forgotten: the next one takes its place."""
        latest, engine = self._latest, self.engine
        if latest is not None and self.armed:
            number, slot, cursor, life = latest
            if life() is None and cursor == engine.cursor and not engine.safe:
                self.region, engine.slot = number, slot
        engine.life = alive = _Life()
        if self.parked is not None:
            self.parked.begins(alive)
        self._latest = self.region, engine.slot, engine.cursor, weakref.ref(alive)
        return self.region

    def let_go(self) -> None:
        """Gives its places on the host to the run that takes its place: autograd has let go of its
        graphs."""
        if self.parked is not None:
            self.parked.let_go()

    def over(self, number: int) -> None:
        """Lets go what leaves at the end of a forward, whose output is still alive; of one that has
        left its plan, all that was sent."""
        if self.parked is None:
            return
        if not self.armed:
            self.parked.drain()
        for storage in self.program.leaving[number : number + 1]:
            for one in storage:
                self.parked.sent(one)

    def left(self) -> None:
        """Ends a forward, whose output is still alive. If nothing of it went through the hooks, it
        cannot be told when its graph is dropped."""
        self.engine.life = None
        if self._latest is not None and self._latest[3]() is None:
            self._latest = None

    # ---- How it goes --------------------------------------------------------------

    def strays(self, row: Row) -> bool:
        """Returns whether the op is about to run on another stream than the one on which the step
        began, unlike in the captured step. A replay would not wait for that stream, and might read
        too early."""
        return self.stream is not None and not row.side and self.stream() != self.home

    def mismatch(self, what: str, op: int | None = None, *, ran_on: bool = False) -> None:
        """Notes a difference from the captured step, at one of its ops if known, or `ran_on` after
        all of them. Everything is kept from now on."""
        self.engine.armed = False
        self.at(0)
        self.counts.mismatches += 1
        if not self.counts.first_mismatch:
            self.counts.first_mismatch, self.counts.first_op = what, op
            self.counts.ran_on = ran_on

    def stand_aside(self, why: str) -> None:
        """Keeps everything from now on. With an empty `why`, the reason is our own and no mismatch
        of the program."""
        if why:
            self.mismatch(why)
        self.engine.armed = False
        self.at(0)

    def rescue(self, ref: Ref) -> Tensor:
        """Recomputes a discarded tensor on demand, from the records, after an internal error.
        Raises RuntimeError if that fails, too."""
        engine = self.engine
        engine.safe = True
        why = ""
        for _ in range(2):
            try:
                with torch._C.DisableTorchFunction():
                    tensor: Tensor = engine.take(ref)
                return tensor
            except Exception as error:
                if not caught(error):
                    raise
                why = described(error)
        raise told(
            RuntimeError(
                f"a saved tensor that the plan discarded cannot be recomputed ({why}): an "
                "internal error in Reprise, please report it; set REPRISE_DISABLE=1 to train "
                "without it"
            )
        )

    @property
    def spent(self) -> bool:
        """Whether every forward of the captured step has run, so that one more is another run's."""
        program, latest = self.program, self._latest
        if not program.replays or self.region < len(program.regions):
            return False
        return latest is None or latest[3]() is not None or latest[2] != self.engine.cursor

    @property
    def op(self) -> int | None:
        """The latest op of the captured step that has begun, as far as the tape knows."""
        cursor: int = self.engine.cursor
        row: int = self.engine.next
        if cursor:
            return self.program.events[cursor - 1].op
        return self.program.rows[row - 1].op if row else None

    def finish(self) -> None:
        """Ends the step. A number of forwards other than the captured one is a mismatch, unless
        every forward that came was whole and planned."""
        close_watches()
        if self.parked is not None:
            self.parked.drain()
        captured = len(self.program.regions)
        if self.armed and self.region != captured:
            if self._whole_forwards():
                self.counts.other_forwards = True
            else:
                self.mismatch(f"{self.region} forwards in a step captured with {captured}")

    def _whole_forwards(self) -> bool:
        """Returns whether all forwards so far ran as planned and left nothing to unpack. This is so
        when gradients are accumulated over fewer forwards than captured."""
        engine, events = self.engine, self.program.events
        done, packed = engine.cursor, engine.slot
        return (
            not engine.safe
            and all(event.slot < packed for event in events[:done])
            and all(event.slot >= packed for event in events[done:])
        )

    def alone(self, number: int) -> tuple[int, int] | None:
        """Returns the slot and the event with which forward `number` begins, just before it runs;
        None if earlier forwards still have tensors to unpack, or the program replays some of their
        calls for it."""
        program, engine = self.program, self.engine
        row, cursor = program.regions[number][0], engine.cursor
        if row >= len(program.rows) or not self._whole_forwards():
            return None
        first = program.rows[row].op
        for event in program.events[cursor:]:
            if any(program.made_by(replay) < first for replay in program.replays_before(event)):
                return None
        return engine.slot, cursor

    def _unplanned(self, what: str) -> None:
        """Makes the run safe: nothing is freed from now on, and what is missing is recomputed on
        demand."""
        self.engine.safe = True
        if self.armed:
            self.mismatch(what)

    # ---- Forward ----------------------------------------------------------------

    def special(self, number: int, op: Op) -> Any:
        """Runs the op of a row that is recorded, or that writes. After an internal error the op
        counts as not recorded."""
        row = self.program.rows[number]
        try:
            if self.parked is None:
                return self.engine.special(number, op)
            for storage in row.sent:
                self.parked.sent(storage)
            if row.writes:
                self.parked.before_write(all_written_by(op.func, op.args, op.kwargs))
            out = self.engine.special(number, op)
            self._send(self.parked, row, out)
            return out
        except Exception as error:
            if (op.begun and not op.done) or not caught(error):
                raise
        self.mismatch("an internal error in Reprise")
        return self.written(op)

    def _send(self, parked: Parked, row: Row, out: Any) -> None:
        """Begins to copy what a call has made to the host."""
        for storage, tensor in zip(row.parked, tensors_in(out), strict=False):
            if storage >= 0 and not parked.send(storage, tensor):
                self.mismatch(f"the host has no room for storage {storage}", row.op)

    def written(self, op: Op) -> Any:
        """Runs an op that writes and is not recorded, unless it has run. Returns its result."""
        tensors = all_written_by(op.func, op.args, op.kwargs)
        out = op.out
        if not op.done:
            self.before_write(tensors)
            out = op.run()
        self.engine.written(tensors)
        return out

    def before_write_between(self, tensors: Sequence[Tensor]) -> None:
        """Does the same as `before_write` between a forward and its backward, and notes whether a
        parameter is written of which a gathered one is made."""
        if self.program.sources and not self.changed:
            written = {tensor.untyped_storage()._cdata for tensor in tensors}
            self.changed = not self.program.sources.isdisjoint(written)
        self.before_write(tensors)

    def refuse_changed(self) -> None:
        """Raises RuntimeError if such a parameter was written: replays would read its new values
        where the forward read the old ones."""
        if self.changed:
            raise told(
                RuntimeError(
                    "a parameter was changed between a forward and its backward. The plan of this "
                    "step computes discarded tensors again, and the old values of the parameter "
                    "can no longer be gathered for that. Change parameters after the backward, or "
                    "set REPRISE_DISABLE=1 to train without a plan"
                )
            )

    def before_write(self, tensors: Sequence[Tensor]) -> None:
        """Copies what is about to be written for the records that still need it, and tries again
        after an internal error, because the write happens in any case."""
        if self.parked is not None:
            self.parked.before_write(tensors)
        again(self.engine.before_write, tensors)

    def holds(self, storages: Iterable[int]) -> bool:
        """Returns whether a record holds a tensor on one of these storages."""
        storages = tuple(storages)
        parked = self.parked is not None and self.parked.holds(storages)
        return parked or bool(self.engine.holds(storages))

    def waits(self) -> bool:
        """Returns whether a record that holds something may still be replayed."""
        parked = self.parked is not None and self.parked.waits()
        return parked or bool(self.engine.waits())

    def pack(self, tensor: Tensor) -> Any:
        """Returns what autograd keeps instead of a saved tensor, in a step that runs in Python."""
        engine, slots = self.engine, self.program.slots
        slot = engine.slot
        engine.slot = slot + 1
        if engine.armed and slot < len(slots) and slots[slot]:
            ref = engine.give_up(self, slot, tensor)
            if ref is None:
                return self.differs(tensor, slot)
            self.counts.dropped += 1
            return ref
        return self.keep(tensor, slot)

    def differs(self, tensor: Tensor, slot: int) -> Any:
        """Keeps a tensor that should be discarded but differs from that of the captured step."""
        self.mismatch(f"saved tensor {slot} differs from the one in the captured step")
        return self.keep(tensor, slot)

    def keep(self, tensor: Tensor, slot: int) -> Kept:
        """Returns what autograd keeps of a tensor that the plan saves."""
        guard = torch._C._DisableTorchDispatch()
        try:
            return Kept(self, slot if self.engine.armed else -1, saved_alias(tensor))
        finally:
            del guard

    # ---- Backward ---------------------------------------------------------------

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        """Returns the tensor of what a run packed."""
        return unpack(packed)

    def advance(self, slot: int) -> None:
        """Replays what the program has before the unpack of this slot."""
        engine = self.engine
        if engine.safe:
            return
        events, cursor = self.program.events, engine.cursor
        event = events[cursor] if cursor < len(events) else None
        task = torch._C._current_graph_task_id()
        if task != engine.task:
            engine.task = task
            engine.keeps = graph_is_kept()
            # Where the captured step kept its graph, too, the plan knows what later backwards
            # unpack.
            if engine.keeps and (event is None or not event.kept):
                self._unplanned("the graph is retained for another backward")
                return
        if event is None or event.slot != slot:
            self._unplanned("the backward runs in a different order than captured")
            return
        engine.cursor = cursor + 1
        if engine.armed:
            self.at(event.op + 1)
        if not self._before(event):
            engine.safe = True

    def _before(self, event: Event) -> bool:
        """Does what the program has before an event. Returns whether all replays could run."""
        for part in event.parts:
            if isinstance(part, int):
                if not self.engine.burst(part):
                    return False
            elif self.parked is not None:
                move = self.parked.sent if isinstance(part, Sent) else self.parked.fetch
                move(part.storage)
        return True


def unpack(packed: Any) -> Tensor:
    """The unpack hook of every run. It hides from function modes: the tape's operations are not the
    program's, and otherwise each access to a tensor would go through Python."""
    with torch._C.DisableTorchFunction():
        return _unpacked(packed)


def _unpacked(packed: Any) -> Tensor:
    """Returns the tensor of what a run packed: recomputed, or kept."""
    if type(packed) is Ref:
        if packed.cell is None:
            raise told(RuntimeError(GONE))
        packed.run.advance(packed.slot)
        return packed.run.engine.take(packed)  # type: ignore[no-any-return]
    kept = packed.tensor
    if kept is None:
        raise told(RuntimeError(GONE))
    packed.run.advance(packed.slot)
    if version_of(kept) != packed.version:
        refuse_stale(kept, packed.version)
    return kept  # type: ignore[no-any-return]
