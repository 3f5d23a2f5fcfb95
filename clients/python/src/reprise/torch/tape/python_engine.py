# SPDX-License-Identifier: Apache-2.0
"""The engine of a step in Python: what it has recorded, and its position in the program.

    engine = PythonEngine(program, counts)     # one step
    out = engine.special(row, op)              # runs a call that is recorded, or that writes
    ref = engine.give_up(run, slot, tensor)    # what autograd keeps of a tensor that is discarded
    tensor = engine.take(ref)                  # the tensor that autograd gets back

One engine runs a step from its beginning to its end: this one, or the native one
(compiled/track.h), which has the same attributes and methods and the same behaviour. This one runs
where nothing is compiled, and in steps that other dispatch modes observe; the tests compare the
native engine with it. tape_run.py decides which engine runs a step, and what happens when the step
leaves its plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from reprise.torch.compiled.shortcut import has_shortcut, shortcut
from reprise.torch.internals.ambient import GeneratorState, device_of
from reprise.torch.internals.modes import Op
from reprise.torch.internals.ops import all_written_by, tensors_in
from reprise.torch.internals.saved_hooks import refuse_stale
from reprise.torch.internals.subclass import geometry_of, saved_alias, version_of
from reprise.torch.tape.calls import view_alone
from reprise.torch.tape.on_demand import make_on_demand
from reprise.torch.tape.parked import fetch
from reprise.torch.tape.program import FETCHED, Program, Row
from reprise.torch.tape.records import (
    Cell,
    Node,
    Ref,
    alias_below,
    cell_of,
    mark,
    record,
    unmark,
)
from reprise.torch.tape.replay import Replayer, use


class PythonEngine:
    """The records of one step, and its position in the program."""

    def __init__(self, program: Program, counts: Any) -> None:
        self.program = program
        self.armed = True  # whether everything has been as captured so far
        self.safe = False  # whether nothing is freed any more; the rest is recomputed on demand
        self.next = 0  # the next row
        self.slot = 0  # the next slot
        self.cursor = 0  # the next event
        self.task = -1  # autograd's graph task
        self.keeps = False  # whether that backward keeps its graph for another one
        self.life: object = None  # of the forward that runs (tape_run.py)
        self.host = 0  # the key of what this step has in host memory (parked.py)
        self.audited = False  # whether recomputed tensors are compared with the discarded ones
        # By op of the step graph.
        self.nodes: dict[int, weakref.ref[Node]] = {}
        # Storage -> records that hold a tensor on it, for the copy before a write.
        self.leaves: dict[int, list[weakref.ref[Node]]] = {}
        self.replayer = Replayer(self.nodes, counts)
        self._counts = counts

    # ---- Forward ----------------------------------------------------------------

    def special(self, number: int, op: Op) -> Any:
        """Runs an op that is recorded, or that writes; returns its result."""
        row = self.program.rows[number]
        func, args, kwargs = op.func, op.args, op.kwargs
        targets = self.before_write(all_written_by(func, args, kwargs)) if row.writes else []
        if not row.replays:
            out = op.run()
            for written in targets:
                written.chain.append(None)
            self._park(row, out)
            return out
        target = targets[-1] if targets else None
        node = record(func, args, kwargs, row.replays, row.first_life_reads, target, self)
        short = row.short and has_shortcut(func, args)
        if row.seeded and not short:
            node.state = GeneratorState(device_of(args, kwargs))
        out = op.run()
        if short:
            node.short = shortcut(func, args, out)
        if target is not None:
            node.outputs.append(weakref.ref(target))
            self._remember(row.op, node)
            target.chain.append(node)
        else:
            self._park(row, out)
            self._make_cells(row, node, out)
            self._remember(row.op, node)
        return out

    def _park(self, row: Row, out: Any) -> None:
        """Makes the cells of storages that are sent to host memory: a call that fetches them makes
        them again."""
        for storage, tensor in zip(row.parked, tensors_in(out), strict=False):
            if storage >= 0:
                node = fetch(self.host, storage)
                cell = Cell(storage, [node], tensor.dtype, weakref.ref(self))
                mark(tensor, cell)
                node.outputs.append(weakref.ref(cell))
                self._remember(FETCHED + storage, node)

    def _make_cells(self, row: Row, node: Node, out: Any) -> None:
        outputs = (out,) if isinstance(out, Tensor) else tensors_in(out)
        for position, tensor in enumerate(outputs):
            number = row.cells[position] if position < len(row.cells) else -1
            if number < 0:
                node.outputs.append(None)
                continue
            cell = cell_of(tensor, self) if number in row.parked else None
            if cell is None:
                cell = Cell(number, [node], tensor.dtype, weakref.ref(self))
                mark(tensor, cell)
            node.outputs.append(weakref.ref(cell))

    def _remember(self, op: int, node: Node) -> None:
        self.nodes[op] = reference = weakref.ref(node)
        for held in node.held:
            if held.tensor is not None:
                key = held.tensor.untyped_storage()._cdata
                self.leaves.setdefault(key, []).append(reference)

    def before_write(self, tensors: Sequence[Tensor]) -> list[Cell]:
        """Copies these tensors for the records that still need their present content; returns the
        cells of the tensors."""
        targets = []
        for tensor in tensors:
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
                targets.append(cell)
        return targets

    def written(self, tensors: Sequence[Tensor]) -> None:
        """Notes that a call has written these tensors without being recorded. The discarded ones
        among them can no longer be recomputed, so each stays as the copy of its cell, with all
        later writes."""
        for tensor in tensors:
            cell = cell_of(tensor, self)
            if cell is not None:
                cell.chain.append(None)
                unmark(tensor)
                cell.tensor, cell.version = alias_below(tensor), len(cell.chain)
                self.safe = True

    def give_up(self, run: Any, slot: int, tensor: Tensor) -> Ref | None:
        """Returns what autograd keeps instead of a tensor that the plan discards; None if it is not
        the tensor of the captured step."""
        program = self.program
        cell = cell_of(tensor, self)
        if cell is None or cell.dtype != tensor.dtype or None in cell.chain:
            return None
        version = max(len(cell.chain), program.versions[slot])
        ref = Ref(run, slot, cell, version, geometry_of(tensor))
        if program.firsts and program.firsts[slot]:
            ref.hold(saved_alias(tensor), program.firsts[slot])
        # A tensor that will still be written differs from the one that is unpacked.
        if self.audited and version == len(cell.chain):
            ref.given = run.given(tensor)
        return ref

    # ---- Between the forward and the backward ---------------------------------------

    def holds(self, storages: Iterable[int]) -> bool:
        """Returns whether a record holds a tensor on one of these storages."""
        return any(storage in self.leaves for storage in storages)

    def waits(self) -> bool:
        """Returns whether a record that holds something may still be replayed."""
        nodes = (reference() for held in self.leaves.values() for reference in held)
        return any(node is not None and node.args is not None for node in nodes)

    # ---- Backward ---------------------------------------------------------------

    def burst(self, number: int) -> bool:
        """Runs a burst of the program. Returns whether all of it could run."""
        return self.replayer.run(self.program.bursts[number])

    def take(self, ref: Ref) -> Tensor:
        """Returns the tensor of a `Ref`, compared with the discarded one in a checked step. No
        function mode may see the call."""
        cell = ref.cell
        assert cell is not None
        if ref.firsts:
            return self._as_saved(ref)
        made = self._again(ref, cell)
        if ref.given is not None and self.audited:  # not: it has been judged
            made = ref.run.compared(ref.slot, made, ref.given, cell.id)
            if ref.made is not None:
                ref.made = made
        return made

    def _again(self, ref: Ref, cell: Cell) -> Tensor:
        if ref.made is not None:
            if not self.safe:
                use(cell)
            return ref.made
        made = view_alone(self._copy_for(ref, cell), ref.geometry)
        if not self.safe:
            # In a graph that is kept, a later backward unpacks it again, as the plan provides.
            if not self.keeps:
                ref.made = made
                cell.waited(ref.version)
            use(cell)
        return made

    def _copy_for(self, ref: Ref, cell: Cell) -> Tensor:
        """Returns the copy that is present, or recomputes one on demand."""
        version = min(ref.version, len(cell.chain))  # a step that left the plan wrote less often
        if cell.tensor is not None and cell.version == version:
            return cell.tensor
        self.safe = True
        return make_on_demand(self._counts, cell, version)

    def _as_saved(self, ref: Ref) -> Tensor:
        """Returns the tensor as it was saved, and releases it after the last unpack that expects
        it."""
        tensor = ref.made
        assert tensor is not None
        if version_of(tensor) != ref.stale:
            refuse_stale(tensor, ref.stale)
        if not self.safe:
            ref.firsts -= 1
            if not ref.firsts:
                ref.made = None
        return tensor
