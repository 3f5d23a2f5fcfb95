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
stands there, then hands out the tensor. Where it is built, fast.cc does the part of this that has
nothing to decide.

What must stay true: gradients are those of the plain program, whatever the plan. Records hold
what really ran; the program only says what to hold and when to let go. At the first op out of step
the run *disarms*: from there on everything is kept. At the first unpack out of step, or when the
graph is to be kept for another backward, the run turns *safe*: nothing more is let go and what is
missing is made on demand. tests/python/pytorch/test_tape.py holds it to that.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.marks import At, ignore_end
from reprise.torch import fast
from reprise.torch.generator import GeneratorState, device_of
from reprise.torch.handover import adopt
from reprise.torch.host import HostSaved, HostSaves
from reprise.torch.open_hooks import Hooks
from reprise.torch.ops import IGNORED, PLAIN_TYPES, mutated_positions, tensors_in
from reprise.torch.program import Program, Row
from reprise.torch.records import (
    Cell,
    Kept,
    Node,
    Ref,
    alias_below,
    cell_of,
    geometry_of,
    mark,
    record,
    unmark,
)
from reprise.torch.replay import Replayer
from reprise.torch.shortcut import has_shortcut, prepare, shortcut
from reprise.torch.stale import stale_message
from reprise.torch.verify import Audit
from reprise.torch.watch import close_watches, watch
from reprise.torch.windows import OpRecorder

__all__ = ["Counts", "Run", "Tape", "unpack"]


@dataclass(slots=True)
class Counts:
    """What a step did."""

    dropped: int = 0  # saved tensors given up
    replayed: int = 0  # calls replayed as planned
    on_demand: int = 0  # and beyond the plan
    mismatches: int = 0
    first_mismatch: str = ""


class Run:
    """One step under a program."""

    __slots__ = (
        "__weakref__",
        "_audit",
        "at",
        "counts",
        "host",
        "leaves",
        "nodes",
        "program",
        "region",
        "replayer",
        "track",
    )

    def __init__(
        self,
        program: Program,
        counts: Counts | None = None,
        compiled: fast.Compiled | None = None,
        at: At = ignore_end,
        here: int = 0,
    ) -> None:
        self.program = program
        self.at = at  # is told where the step is, for who asks after the job was killed
        self.counts = counts or Counts()
        # A Track of Python, or one of fast.cc.
        self.track: Any = fast.Track() if compiled is None else compiled.track(self, here)
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
        if audit is not None:
            self.in_python()
        self._audit = audit

    def trace(self, recorder: OpRecorder) -> None:
        """Replays are recorded, one by one."""
        self.in_python()
        self.replayer.recorder = recorder

    # ---- Records in fast.cc -------------------------------------------------------

    def in_python(self) -> None:
        """What fast.cc has recorded is from here on with us, and more of it comes here."""
        if not self.track.handed:
            self.track.hand_over(adopt)

    def count(self, dropped: int, replayed: int) -> None:
        """What fast.cc has done."""
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

    def mismatch(self, what: str) -> None:
        """From here on everything is kept."""
        self.in_python()
        self.track.armed = False
        self.at(0)
        self.counts.mismatches += 1
        self.counts.first_mismatch = self.counts.first_mismatch or what

    def stand_aside(self, why: str) -> None:
        """Keeps everything; a reason of our own is no mismatch of the program."""
        if why:
            self.mismatch(why)
        self.track.armed = False
        self.at(0)

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
        """The step has ended."""
        close_watches()
        captured = len(self.program.regions)
        if self.armed and self.region != captured:
            self.mismatch(f"{self.region} forwards in a step captured with {captured}")

    def _unplanned(self, what: str) -> None:
        """From here on nothing is let go and what is missing is made on demand."""
        self.safe = True
        if self.armed:
            self.mismatch(what)

    # ---- Forward ----------------------------------------------------------------

    def special(self, row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op that is recorded, or that writes."""
        self.in_python()
        targets = self.before_write(func, args, kwargs) if row.writes else []
        if not row.replays:
            out = func(*args, **kwargs)
            for cell, _ in targets:
                cell.chain.append(None)
            return out
        target = targets[-1][0] if targets else None
        node = record(func, args, kwargs, row.replays, row.first_life_reads, target, self)
        short = row.short and has_shortcut(func, args)
        if row.seeded and not short:
            node.state = GeneratorState(device_of(args, kwargs))
        out = func(*args, **kwargs)
        if short:
            node.short = shortcut(func, args, out)
        if target is not None:
            node.outputs.append(weakref.ref(target))
            target.chain.append(node)
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

    def written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op that writes, after a disarm."""
        self.in_python()
        targets = self.before_write(func, args, kwargs)
        out = func(*args, **kwargs)
        for cell, tensor in targets:
            # Not recorded, so what it wrote cannot be made again: it stays, as the cell's copy,
            # with whatever is written to it from here on.
            cell.chain.append(None)
            if cell_of(tensor, self) is cell:
                unmark(tensor)
            cell.tensor, cell.version = alias_below(tensor), len(cell.chain)
            self.safe = True
        return out

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
                for reference in self.leaves.pop(key, ()):
                    node = reference()
                    for held in node.held if node is not None else ():
                        kept = held.tensor
                        if kept is not None and kept.untyped_storage()._cdata == key:
                            held.tensor = kept.detach().clone()
                            held.stale = held.tensor._version
                cell = cell_of(tensor, self)
                if cell is not None:
                    targets.append((cell, tensor))
        return targets

    def holds(self, storages: Iterable[int]) -> bool:
        """Does a record hold a tensor on one of these storages?"""
        if not self.track.handed:
            return bool(self.track.holds(storages))
        return any(storage in self.leaves for storage in storages)

    def waits(self) -> bool:
        """Is there still a record that may be replayed, and holds something?"""
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
                self.mismatch(f"saved tensor {slot} is not the one of the captured step")
            else:
                self.counts.dropped += 1
                version = max(len(cell.chain), self.program.versions[slot])
                ref = Ref(self, slot, cell, version, geometry_of(tensor))
                if self.audit is not None:
                    ref.copy = self.audit.keep(tensor)
                return ref
        guard = torch._C._DisableTorchDispatch()
        try:
            if self.host is not None and not track.armed:
                saved = self.host.pack(tensor)
                if saved is not None:
                    return saved
            return Kept(self, slot if track.armed else -1, tensor.detach())
        finally:
            del guard

    # ---- Backward ---------------------------------------------------------------

    def advance(self, slot: int) -> None:
        """An unpack of a slot: replays what the program has before it."""
        track = self.track
        if track.safe:
            return
        task = torch._C._current_graph_task_id()
        if task != track.task:
            track.task = task
            if _graph_is_kept():
                self._unplanned("the graph is kept for another backward")
                return
        cursor, program = track.cursor, self.program
        if cursor >= len(program.events) or program.events[cursor] != slot:
            self._unplanned("the backward runs in another order than captured")
            return
        track.cursor = cursor + 1
        if track.armed:
            self.at(program.event_ops[cursor] + 1)
        burst = program.bursts[cursor]
        if burst and not (self.replayer.run(burst) if track.handed else track.burst(cursor)):
            self.safe = True


def unpack(packed: Any) -> Tensor:
    """The unpack hook of every run. Out of sight of function modes: what the tape does is not what
    the program does, and every look at a tensor would pass through Python."""
    with torch._C.DisableTorchFunction():
        return _unpacked(packed)


def _unpacked(packed: Any) -> Tensor:
    if type(packed) is Ref:
        packed.run.advance(packed.slot)
        made = packed.run.replayer.take(packed, packed.run)
        audit = packed.run.audit
        if packed.copy is not None and audit is not None:  # None: it has been judged
            audit.compare(packed.slot, made, packed.copy)
        return made  # type: ignore[no-any-return]
    if type(packed) is HostSaved:
        return packed.copy.owner.unpack(packed)
    packed.run.advance(packed.slot)
    if packed.tensor._version != packed.version:
        _stale(packed.tensor, packed.version)
    return packed.tensor  # type: ignore[no-any-return]


def _stale(tensor: Tensor, version: int) -> None:
    raise RuntimeError(stale_message(tensor, version))


def _graph_is_kept() -> bool:
    """Was this backward called with retain_graph? Unknown counts as yes.

    Autograd does not tell its hooks, so look at the call that is under way: on this thread, or,
    when this is a device's thread, on the one that waits for it."""
    own = _keeps(sys._getframe(1))
    if own is not None:
        return own
    others = [_keeps(frame) for frame in sys._current_frames().values()]
    known = [kept for kept in others if kept is not None]
    return any(known) if known else True


def _keeps(frame: FrameType | None) -> bool | None:
    """The retain_graph of the innermost backward on a stack; None: there is none."""
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            args = frame.f_locals.get("args", ())
            return bool(args[1]) if len(args) > 1 else True
        frame = frame.f_back
    return None


class Tape(TorchDispatchMode):
    """The dispatch mode of a planned forward."""

    supports_higher_order_operators = True

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        prepare()
        self._compiled = fast.Compiled.of(program, unpack, _stale)
        self._gate: Any = None  # while it is open
        self._run = self.begin()

    def begin(
        self,
        counts: Counts | None = None,
        host: HostSaves | None = None,
        at: At = ignore_end,
        here: int = 0,
    ) -> Run:
        """A step begins; what an unfinished one left is forgotten with its graph. With the counts
        of a run that is spent the step goes on. `host`: what a mismatch keeps is kept there; only
        in Python. `at` is called with 1 + op, `here` is the address of the same in C, for ops that
        never come to Python."""
        compiled = self._compiled if host is None else None
        program = self.program if compiled is None else compiled.program
        self._run = Run(program, counts, compiled, at, here)
        self._run.host = host
        return self._run

    @property
    def hooked(self) -> int:
        """Saved tensors of a step that go through the hooks."""
        return len(self.program.events if self._compiled is None else self._compiled.program.events)

    @contextmanager
    def region(self) -> Iterator[None]:
        """The root's forward."""
        run, program = self._run, self.program
        close_watches()
        if not program.replays:
            # Everything is kept: there is nothing to do, nothing to check, nothing to pay.
            run.region = len(program.regions)
            yield
            return
        if self._compiled is not None and not run.region and not fast.alone():
            # Somebody else looks at every op, too: all of them go through Python in this step.
            run.program, run.track = program, fast.Track()
        number = run.region
        track = run.track
        slot = track.slot
        if number >= len(program.regions):
            run.mismatch(f"forward {number + 1} of a step captured with {len(program.regions)}")
            first = end = 0
        else:
            first, end = program.regions[number]
            track.next = first
        run.region = number + 1
        try:
            with self._hooks(run), self._ground(track), self, self._opened(track):
                yield
        except BaseException:
            # A forward that fails and is tried again starts over.
            run.region, track.slot = number, slot
            raise
        if run.armed and track.next != end:
            run.mismatch(f"the forward ended after {track.next - first} of {end - first} ops")
        if run.waits():
            watch(run)

    def _hooks(self, run: Run) -> Any:
        if isinstance(run.track, fast.Track):
            return Hooks(run.pack, unpack)
        assert self._compiled is not None
        return Hooks(run.track.pack, self._compiled.module.unpack)

    @staticmethod
    def _ground(track: Any) -> Any:
        return nullcontext() if isinstance(track, fast.Track) else fast.Ground()

    @contextmanager
    def _opened(self, track: Any) -> Iterator[None]:
        """Ops go through the gate, where there is one."""
        if isinstance(track, fast.Track):
            yield
            return
        assert self._compiled is not None
        gate = self._compiled.module
        if not gate.open(track):
            yield
            return
        self._gate = gate
        try:
            yield
        finally:
            self._gate = None
            gate.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        gate = self._gate
        if gate is None:
            return self._op(func, types, args, kwargs)
        # Some calls come here past the gate, by a tensor of another class: what we call must not
        # come to it.
        before = gate.aside(0)
        try:
            return self._op(func, types, args, kwargs)
        finally:
            gate.aside(before)
            if before & 1:
                gate.follow()

    def _op(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Any:
        run = self._run
        track = run.track
        if track.armed:
            rows = self.program.rows
            at = track.next
            if at < len(rows) and rows[at].func is func:
                row = rows[at]
                track.next = at + 1
                run.at(row.op + 1)
                if row.plain:
                    return func(*args, **kwargs) if kwargs else func(*args)
                return run.special(row, func, args, kwargs or {})
            if not PLAIN_TYPES.issuperset(types):
                return NotImplemented
            if func in IGNORED:
                return func(*args, **(kwargs or {}))
            expected = rows[at].func if at < len(rows) else "the end"
            run.mismatch(f"op {at} is {func}, captured was {expected}")
        elif not PLAIN_TYPES.issuperset(types):
            return NotImplemented
        if mutated_positions(func):
            return run.written(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))
