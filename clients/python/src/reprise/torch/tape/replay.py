# SPDX-License-Identifier: Apache-2.0
"""Runs a burst of the program: a group of calls that are replayed before one event. Every call runs
with what is present, its outputs stay for the planned number of uses, and its arguments are
released after its last planned replay.

Whatever is needed can always be recomputed. A rehearsed program (program.py) finds what it needs
while the backward runs as captured. When it no longer does, nothing more is freed, and what later
replays would have made is made from the same records (on_demand.py). Whatever the counts say, the
only copy or record from which something needed can be made is never freed (`use`, `_done_with`).

In a step that finds out why values differ (check/control.py), every call runs a second time from
the same inputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from reprise.torch.check.control import Control
from reprise.torch.internals.ambient import Surroundings
from reprise.torch.internals.ops import tensors_in
from reprise.torch.meter.windows import OpRecorder
from reprise.torch.tape.calls import alone, call, copy, load, view
from reprise.torch.tape.program import Burst
from reprise.torch.tape.records import Cell, Node, Own


@dataclass(slots=True, eq=False)
class Replayer:
    """Runs the replays of one step."""

    _nodes: dict[int, weakref.ref[Node]]
    _counts: Any
    recorder: OpRecorder | None = None  # in a traced step
    names: Mapping[int, str] = field(default_factory=dict)  # then of the ops that are replayed
    control: Control | None = None  # in a step that runs every call twice

    def run(self, burst: Burst) -> bool:
        """Replays a burst, except calls whose outputs nobody holds any more. Returns whether all
        others could run."""
        if self.recorder is None:
            return alone(self._run, burst)
        with self.recorder.op("reprise::recompute"):
            return alone(self._run, burst)

    def _run(self, burst: Burst) -> bool:
        """Replays the calls of a burst; returns False at the first one that cannot run."""
        nodes = self._nodes
        with Surroundings() as around:
            for replay in burst:
                reference = nodes.get(replay.op)
                node = reference() if reference is not None else None
                if node is not None and not self._replay(node, replay.keep, replay.op, around):
                    return False
        return True

    def _replay(self, node: Node, keep: dict[int, int], op: int, around: Surroundings) -> bool:
        """Replays one call; returns False if something that it needs is not present. The rehearsal
        has shown that everything is; but if the executor were wrong about that, it must be slow,
        not incorrect."""
        if node.args is None:
            return False
        if node.fetches:
            return self._come_back(node, keep)
        owner = self._owner(node)
        own = None
        if owner is not None:
            own = owner.tensor
            if own is None or owner.version >= len(owner.chain):
                return False
            if owner.chain[owner.version] is not node:
                return False
        elif any(_only_way_back(c()) for c in node.outputs if c is not None):
            return False
        for held in node.held:
            if held.tensor is None:
                cell = held.cell
                if cell is None or cell.tensor is None or cell.version != held.version:
                    return False
        around.be(node.around)
        if node.flat is None:
            args = load(node.args, own, _copy)
        else:
            args = node.args.copy()
            for position, item in node.flat:
                args[position] = load(item, own, _copy)
        kwargs = load(node.kwargs, own, _copy) if node.kwargs else node.kwargs
        used: list[Cell] = []
        for held in node.held:
            if held.tensor is None:
                if held.cell not in used:
                    used.append(held.cell)  # type: ignore[arg-type]
            elif held.reads > 0:
                held.reads -= 1
                cell = held.cell
                # Whether it can be read from its cell from now on.
                if (
                    held.reads == 0
                    and cell
                    and (cell.tensor is not None or cell.recorded(0, held.version))
                ):
                    held.tensor = None
        node.replays -= 1
        again = None if self.control is None else Twice(self.control, node, op, own)
        recorder = self.recorder
        number = 0 if recorder is None else recorder.begin(self.names[op])
        out = call(node, args, kwargs)
        if owner is not None:
            owner.version += 1  # now, before anything else can fail
            used.append(owner)
        if recorder is not None:
            recorder.end(number)
        if again is not None:
            again.compare(args, kwargs, out)
        del args, kwargs, own, again
        self._counts.replayed += 1
        if owner is None:
            made = (out,) if isinstance(out, Tensor) else tensors_in(out)
            for reference, tensor in zip(node.outputs, made, strict=False):
                cell = None if reference is None else reference()
                # A new copy starts with its own count, even if a use of the last one never came.
                if cell is not None and cell.id in keep:
                    cell.tensor, cell.version, cell.uses = tensor, 1, keep[cell.id]
        if node.replays == 0:
            _done_with(node)
        for cell in used:
            use(cell)
        return True

    def _come_back(self, node: Node, keep: dict[int, int]) -> bool:
        """Takes a storage that was fetched."""
        reference = node.outputs[0]
        cell = None if reference is None else reference()
        if cell is not None:
            cell.tensor, cell.version, cell.uses = call(node, node.args or [], {}), 1, keep[cell.id]
            self._counts.replayed += 1
        return True

    @staticmethod
    def _owner(node: Node) -> Cell | None:
        """Returns the cell that a call writes in place; None for a call that makes new storages."""
        reference = node.outputs[0] if node.writes else None
        return None if reference is None else reference()


def use(cell: Cell) -> None:
    """Counts one planned use of a copy. The last one frees it, unless it cannot be recomputed and
    is needed."""
    cell.uses -= 1
    if cell.uses <= 0 and not _only_way_back(cell):
        cell.tensor, cell.version = None, 0


def _only_way_back(cell: Cell | None) -> bool:
    """Returns whether a cell's copy is still needed and cannot be recomputed."""
    if cell is None or cell.tensor is None or not cell.waiting:
        return False
    return not cell.recorded(0, max(cell.waiting))


def _done_with(node: Node) -> None:
    """Releases what a call holds after its last planned replay, unless one of its outputs still
    needs it."""
    for reference in node.outputs:
        cell = None if reference is None else reference()
        if cell is None or (cell.chain[0] is not None and cell.chain[0].fetches):
            continue
        if cell.waiting and cell.tensor is None:
            return  # only this call can make that output
    node.forget()


def _copy(cell: Cell, _: int) -> Tensor | None:
    return cell.tensor


class Twice:
    """A call that runs a second time from the same inputs, so that its results can be compared."""

    def __init__(self, control: Control, node: Node, op: int, own: Tensor | None) -> None:
        """Prepares the second run; to be called before the first one. `own` is what the call writes
        in place."""
        self._control, self._node, self._op, self._own = control, node, op, own
        cells = [None if c is None else c() for c in node.outputs]
        self._storages = [None if c is None else c.id for c in cells]
        self._before = self._flipped = None
        control.begins()
        if own is not None:
            self._before = copy(own)
            if control.unsteady(self._storages[0]):
                self._flipped = control.flip(self._storages[0], copy(own))

    def compare(self, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Runs the call again and compares the outputs. To be called after its first run."""
        self._compare(args, kwargs, out)
        self._control.ends(self._op)

    def _compare(self, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Runs the call again on copies and shows both results to the control."""
        control, own = self._control, self._own
        if own is None or self._before is None:
            made = list(tensors_in(out))
            if self._op in control.allocating:
                control.allocated(self._storages, made)
                return
            again = tensors_in(call(self._node, args, kwargs))
            control.twice(self._op, self._storages, made, again)
            return
        if self._flipped is not None:
            self._written(self._flipped, args, kwargs)
            control.written(self._storages[0], own, self._flipped)
            self._flipped = None
        self._written(self._before, args, kwargs)
        control.twice(self._op, self._storages, [own], [self._before])

    def _written(self, copy: Tensor, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Runs the call again, so that it writes `copy` instead of its target."""
        node = self._node
        call(node, _instead(node.args or [], args, copy), _instead(node.kwargs or {}, kwargs, copy))


def _instead(recorded: Any, loaded: Any, own: Tensor) -> Any:
    """Returns the loaded arguments with `own` in place of the storage that the call writes."""
    if isinstance(recorded, Own):
        return view(own, recorded.geometry)
    if isinstance(recorded, (list, tuple)):
        return [_instead(r, v, own) for r, v in zip(recorded, loaded, strict=True)]
    if isinstance(recorded, dict):
        return {key: _instead(value, loaded[key], own) for key, value in recorded.items()}
    return loaded
