# SPDX-License-Identifier: Apache-2.0
"""One step under a program: what it has recorded, how far it is, what it does when something is not
as captured.

    run = Run(program)                    # made by Tape.begin
    run.special(row, op)                  # a call that is recorded, or that writes
    packed = run.pack(tensor)             # what autograd keeps of a saved tensor
    tensor = unpack(packed)               # in the backward: replays what stands before it

Records are its own, or, as long as all is as planned and that half is built, those of
compiled/records.h; `in_python` takes them over. Armed, it gives up what the program says; after
the first op out of step everything is kept. Safe, it lets nothing go any more, and what is missing
is made on demand.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reprise.marks import At, ignore_end
from reprise.torch.check.control import Control
from reprise.torch.check.values import Audit
from reprise.torch.compiled import fast
from reprise.torch.compiled.shortcut import has_shortcut, shortcut
from reprise.torch.internals.generator import GeneratorState, device_of
from reprise.torch.internals.geometry import geometry_of
from reprise.torch.internals.guard import caught, described, fault, ours, quietly, told
from reprise.torch.internals.host import HostSaved, HostSaves
from reprise.torch.internals.modes import Op
from reprise.torch.internals.ops import mutated_positions, tensors_in
from reprise.torch.internals.passes import graph_is_kept
from reprise.torch.internals.stale import GONE, refuse_stale
from reprise.torch.internals.subclass import saved_alias, version_of
from reprise.torch.internals.watch import close_watches
from reprise.torch.meter.state import stream_of
from reprise.torch.meter.windows import OpRecorder
from reprise.torch.tape.handover import adopt
from reprise.torch.tape.native_program import Compiled
from reprise.torch.tape.program import Program, Row
from reprise.torch.tape.records import (
    Cell,
    Kept,
    Node,
    Ref,
    alias_below,
    cell_of,
    mark,
    record,
    unmark,
)
from reprise.torch.tape.replay import Replayer

__all__ = ["Counts", "Run", "unpack"]


@dataclass(slots=True)
class Counts:
    """Counts of what a step did."""

    dropped: int = 0  # saved tensors given up
    replayed: int = 0  # calls replayed as planned
    on_demand: int = 0  # and beyond the plan
    mismatches: int = 0
    first_mismatch: str = ""
    first_op: int | None = None  # of the captured step, where that is known
    other_forwards: bool = False  # more or fewer of them than captured, each as planned


class Run:
    """The state of one step that runs under a program."""

    __slots__ = (
        "__weakref__",
        "_audit",
        "at",
        "counts",
        "home",
        "host",
        "leaves",
        "nodes",
        "program",
        "region",
        "replayer",
        "stream",
        "track",
    )

    def __init__(
        self,
        program: Program,
        counts: Counts | None = None,
        compiled: Compiled | None = None,
        at: At = ignore_end,
        here: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """`device`: where its ops have streams; None: they have none."""
        self.program = program
        self.at = at  # is told where the step is, for who asks after the job was killed
        self.counts = counts or Counts()
        # A Track of Python, or one of fast.cc.
        self.track: Any = fast.Track() if compiled is None else compiled.track(self, here, device)
        self.stream: Callable[[], Any] | None = None if device is None else stream_of(device)
        self.home: Any = None if self.stream is None else self.stream()
        self._audit: Audit | None = None
        # Where saved tensors go after a mismatch, in a job that does not fit without a plan.
        self.host: HostSaves | None = None
        self.region = 0
        self.nodes: dict[int, weakref.ref[Node]] = {}
        # Storage -> records that hold a tensor on it, for the copy before a write.
        self.leaves: dict[int, list[weakref.ref[Node]]] = {}
        self.replayer = Replayer(self.nodes, self.counts)

    @property
    def armed(self) -> bool:
        """Everything has come as captured so far."""
        return bool(self.track.armed)

    @property
    def safe(self) -> bool:
        """Nothing is let go any more, what is missing is made on demand."""
        return bool(self.track.safe)

    @safe.setter
    def safe(self, on: bool) -> None:
        self.in_python()
        self.track.safe = on

    @property
    def audit(self) -> Audit | None:
        """Compares what is made again with what was given up."""
        return self._audit

    @audit.setter
    def audit(self, audit: Audit | None) -> None:
        self.replayer.control = audit if isinstance(audit, Control) else None
        if self.replayer.control is not None:
            self.in_python()
        if not self.track.handed:
            self.track.audited = audit is not None
        self._audit = audit

    def take_audit(self) -> Audit | None:
        """With all it has found; nothing is compared from here on."""
        audit = self._audit
        if audit is not None and not isinstance(self.track, fast.Track):
            audit.add(self.track)
        self.audit = None
        return audit

    def trace(self, recorder: OpRecorder) -> None:
        """Records every replay of this step as an op."""
        self.in_python()
        self.replayer.recorder = recorder

    # ---- Records in fast.cc -------------------------------------------------------

    def in_python(self) -> None:
        """What fast.cc has recorded is from here on with us, and more of it comes here."""
        if not self.track.handed:
            self.track.hand_over(adopt)

    def count(self, dropped: int, replayed: int) -> None:
        """Adds the counts of the native engine."""
        self.counts.dropped += dropped
        self.counts.replayed += replayed

    def remember(self, op: int, node: Node) -> None:
        """A call of this number has been recorded."""
        self.nodes[op] = reference = weakref.ref(node)
        leaves = self.leaves
        for held in node.held:
            if held.tensor is not None:
                key = held.tensor.untyped_storage()._cdata
                known = leaves.get(key)
                if known is None:
                    leaves[key] = [reference]
                else:
                    known.append(reference)

    # ---- How it goes --------------------------------------------------------------

    def strays(self, row: Row) -> bool:
        """Is it about to run on another stream than the step began on, where the captured one did
        not? A replay would not wait for it, and might read what it has not written yet."""
        return self.stream is not None and not row.side and self.stream() != self.home

    def mismatch(self, what: str, op: int | None = None) -> None:
        """Notes a difference to the captured step, at an op of it where one is known; everything is
        kept from here on."""
        self.in_python()
        self.track.armed = False
        self.at(0)
        self.counts.mismatches += 1
        if not self.counts.first_mismatch:
            self.counts.first_mismatch, self.counts.first_op = what, op

    def stand_aside(self, why: str) -> None:
        """Keeps everything; a reason of our own is no mismatch of the program."""
        if why:
            self.mismatch(why)
        self.track.armed = False
        self.at(0)

    def rescue(self, ref: Ref) -> Tensor:
        """A tensor that was given up and could not be had as planned, after a fault of ours: on
        demand, from the records."""
        if not quietly(setattr, self, "safe", True):
            self.track.safe = True
        why = ""
        for _ in range(2):
            try:
                return self.replayer.take(ref, self)
            except Exception as error:
                if not ours(error):
                    raise
                fault(error)
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
        """Every forward of the captured step has come, and its backward has run."""
        program = self.program
        over = self.track.cursor >= len(program.events)
        return bool(program.replays) and over and self.region >= len(program.regions)

    @property
    def op(self) -> int | None:
        """The newest op of the captured step that has begun, as far as the tape sees."""
        cursor: int = self.track.cursor
        row: int = self.track.next
        if cursor:
            return self.program.event_ops[cursor - 1]
        return self.program.rows[row - 1].op if row else None

    def finish(self) -> None:
        """Ends the step; another number of forwards than captured is a mismatch."""
        close_watches()
        captured = len(self.program.regions)
        if self.armed and self.region != captured:
            if self._whole_forwards():
                self.counts.other_forwards = True
            else:
                self.mismatch(f"{self.region} forwards in a step captured with {captured}")

    def _whole_forwards(self) -> bool:
        """Fewer forwards than captured, as when gradients are accumulated over fewer of them: was
        all that came planned, and is nothing of it left over?"""
        track, events = self.track, self.program.events
        done, packed = track.cursor, track.slot
        return (
            not track.safe
            and all(slot < packed for slot in events[:done])
            and all(slot >= packed for slot in events[done:])
        )

    def alone(self, number: int) -> tuple[int, int] | None:
        """Forward `number` is about to run. The slot and the event it begins with, if nothing
        before it is still to be unpacked and nothing before it is made again for it."""
        program, track = self.program, self.track
        row, cursor = program.regions[number][0], track.cursor
        if row >= len(program.rows) or not self._whole_forwards():
            return None
        first = program.rows[row].op
        if any(replay.op < first for burst in program.bursts[cursor:] for replay in burst):
            return None
        return track.slot, cursor

    def _unplanned(self, what: str) -> None:
        """From here on nothing is let go and what is missing is made on demand."""
        self.safe = True
        if self.armed:
            self.mismatch(what)

    # ---- Forward ----------------------------------------------------------------

    def special(self, row: Row, op: Op) -> Any:
        """An op that is recorded, or that writes. Where that fails, what it writes counts as
        written by a call that is not recorded."""
        targets: list[tuple[Cell, Tensor]] = []
        try:
            self.in_python()
            return self._recorded(row, op, targets)
        except Exception as error:
            if (op.begun and not op.done) or not caught(error):
                raise
        self.mismatch("an internal error in Reprise")
        if not op.done and row.writes:
            targets = self._before_write(op.func, op.args, op.kwargs)
        return self._not_recorded(op, targets)

    def _recorded(self, row: Row, op: Op, targets: list[tuple[Cell, Tensor]]) -> Any:
        func, args, kwargs = op.func, op.args, op.kwargs
        if row.writes:
            targets += self._before_write(func, args, kwargs)
        if not row.replays:
            out = op.run()
            while targets:
                targets.pop()[0].chain.append(None)
            return out
        target = targets[-1][0] if targets else None
        node = record(func, args, kwargs, row.replays, row.first_life_reads, target, self)
        short = row.short and has_shortcut(func, args)
        if row.seeded and not short:
            node.state = GeneratorState(device_of(args, kwargs))
        out = op.run()
        if short:
            node.short = shortcut(func, args, out)
        if target is not None:
            node.outputs.append(weakref.ref(target))
            self.remember(row.op, node)
            target.chain.append(node)
            targets.clear()
        else:
            self._make_cells(row, node, out)
            self.remember(row.op, node)
        return out

    def _make_cells(self, row: Row, node: Node, out: Any) -> None:
        outputs = (out,) if isinstance(out, Tensor) else tensors_in(out)
        for position, tensor in enumerate(outputs):
            number = row.cells[position] if position < len(row.cells) else -1
            if number < 0:
                node.outputs.append(None)
                continue
            cell = Cell(number, node, tensor.dtype, self)
            mark(tensor, cell)
            node.outputs.append(weakref.ref(cell))

    def written(self, op: Op) -> Any:
        """An op that writes, after a disarm."""
        self.in_python()
        return self._not_recorded(op, self._before_write(op.func, op.args, op.kwargs))

    def _not_recorded(self, op: Op, targets: list[tuple[Cell, Tensor]]) -> Any:
        out = op.out if op.done else op.run()
        for cell, tensor in targets:
            # Not recorded, so what it wrote cannot be made again: it stays, as the cell's copy,
            # with whatever is written to it from here on.
            cell.chain.append(None)
            if cell_of(tensor, self) is cell:
                unmark(tensor)
            cell.tensor, cell.version = alias_below(tensor), len(cell.chain)
            self.safe = True
        return out

    def _before_write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[Cell, Tensor]]:
        """Calls `before_write`, and again if it fails, because the write happens in any case."""
        try:
            return self.before_write(func, args, kwargs)
        except Exception as error:
            if not caught(error):
                raise
        return self.before_write(func, args, kwargs)

    def before_write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[Cell, Tensor]]:
        """Gives records that still need the old content a copy of it. What is written, of what is
        given up."""
        targets = []
        written = [
            kwargs.get(at) if isinstance(at, str) else args[at] if at < len(args) else None
            for at in mutated_positions(func)
        ]
        if not self.track.handed:
            if not self.track.holds([t.untyped_storage()._cdata for t in tensors_in(*written)]):
                return []
            self.in_python()
        for value in written:
            for tensor in tensors_in(value):
                key = tensor.untyped_storage()._cdata
                for reference in self.leaves.get(key, ()):
                    node = reference()
                    for held in node.held if node is not None else ():
                        kept = held.tensor
                        if kept is not None and kept.untyped_storage()._cdata == key:
                            held.tensor = kept.detach().clone()
                            held.stale = held.tensor._version
                self.leaves.pop(key, None)
                cell = cell_of(tensor, self)
                if cell is not None:
                    targets.append((cell, tensor))
        return targets

    def holds(self, storages: Iterable[int]) -> bool:
        """Returns whether a record holds a tensor on one of these storages."""
        if not self.track.handed:
            return bool(self.track.holds(storages))
        return any(storage in self.leaves for storage in storages)

    def waits(self) -> bool:
        """Returns whether a record that holds something may still be replayed."""
        if not self.track.handed:
            return bool(self.track.waits())
        nodes = (reference() for held in self.leaves.values() for reference in held)
        return any(node is not None and node.args is not None for node in nodes)

    def pack(self, tensor: Tensor) -> Any:
        """What autograd keeps instead of a saved tensor."""
        track = self.track
        slot = track.slot
        track.slot = slot + 1
        slots = self.program.slots
        if track.armed and slot < len(slots) and slots[slot]:
            self.in_python()
            cell = cell_of(tensor, self)
            if cell is None or cell.dtype != tensor.dtype or None in cell.chain:
                self.mismatch(f"saved tensor {slot} differs from the one in the captured step")
            else:
                self.counts.dropped += 1
                version = max(len(cell.chain), self.program.versions[slot])
                ref = Ref(self, slot, cell, version, geometry_of(tensor))
                firsts = self.program.firsts
                if firsts and firsts[slot]:
                    ref.hold(saved_alias(tensor), firsts[slot])
                # One that is still to be written is not what will be handed out.
                if self.audit is not None and version == len(cell.chain):
                    ref.given = self.audit.keep(slot, tensor)
                return ref
        guard = torch._C._DisableTorchDispatch()
        try:
            if self.host is not None and not track.armed:
                saved = self.host.pack(tensor)
                if saved is not None:
                    return saved
        finally:
            del guard
        return Kept(self, slot if track.armed else -1, saved_alias(tensor))

    # ---- Backward ---------------------------------------------------------------

    def advance(self, slot: int) -> None:
        """An unpack of a slot: replays what the program has before it."""
        track = self.track
        if track.safe:
            return
        task = torch._C._current_graph_task_id()
        if task != track.task:
            track.task = task
            track.keeps = graph_is_kept()
            if track.keeps and not self._expects_to_keep():
                self._unplanned("the graph is retained for another backward")
                return
        cursor, program = track.cursor, self.program
        if cursor >= len(program.events) or program.events[cursor] != slot:
            self._unplanned("the backward runs in a different order than captured")
            return
        track.cursor = cursor + 1
        if track.armed:
            self.at(program.event_ops[cursor] + 1)
        burst = program.bursts[cursor]
        if burst and not (self.replayer.run(burst) if track.handed else track.burst(cursor)):
            self.safe = True

    def _expects_to_keep(self) -> bool:
        """Was the graph kept in the captured step, too, in the pass that begins here? Then the plan
        knows what later passes ask for."""
        cursor, kept = self.track.cursor, self.program.kept
        return bool(cursor < len(kept) and kept[cursor])


def unpack(packed: Any) -> Tensor:
    """The unpack hook of every run. Out of sight of function modes: what the tape does is not what
    the program does, and every look at a tensor would pass through Python."""
    with torch._C.DisableTorchFunction():
        return _unpacked(packed)


def _unpacked(packed: Any) -> Tensor:
    if type(packed) is Ref:
        if packed.cell is None:
            raise told(RuntimeError(GONE))
        packed.run.advance(packed.slot)
        again = not packed.firsts
        made = packed.run.replayer.take(packed, packed.run)
        audit = packed.run.audit
        if again and packed.given is not None and audit is not None:  # None: it has been judged
            made = audit.compare(packed.slot, made, packed.given, packed.cell.id)
        return made  # type: ignore[no-any-return]
    if type(packed) is HostSaved:
        return packed.copy.owner.unpack(packed)
    kept = packed.tensor
    if kept is None:
        raise told(RuntimeError(GONE))
    packed.run.advance(packed.slot)
    if version_of(kept) != packed.version:
        refuse_stale(kept, packed.version)
    return kept  # type: ignore[no-any-return]
