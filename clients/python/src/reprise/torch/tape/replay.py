# SPDX-License-Identifier: Apache-2.0
"""Makes given-up storages again.

Two ways. `run` follows a burst of the program: each call is replayed with what is present, its
outputs stay for the planned number of uses, arguments go with their last planned replay.
`on_demand` makes a storage where the program and the backward disagree: from the records and the
copies that are there, in a loop (chains are thousands of calls long).

What is needed can always be made. A rehearsed program (rehearsal.py) finds whatever it needs as
long as the backward comes as captured; when it no longer does, nothing more is let go, and what the
replays still to come would have made is made from the same records. Whatever the counts say, the
last way back to something that is still waited for is never let go (`use`, `_done_with`).

Replays run below autograd and autocast and outside every dispatch mode, so that nobody sees them;
with the grad mode of the original call, because kernels ask for it; and with its generator state,
so that random ops draw the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from reprise.errors import RepriseError
from reprise.torch.check.control import Control
from reprise.torch.internals.generator import GeneratorState
from reprise.torch.internals.geometry import Geometry
from reprise.torch.internals.guard import surely
from reprise.torch.internals.ops import tensors_in
from reprise.torch.internals.stale import refuse_modified
from reprise.torch.meter.windows import OpRecorder
from reprise.torch.tape.program import Burst
from reprise.torch.tape.records import Cell, Held, Node, Own

__all__ = ["Replayer", "use", "view_alone"]

T = TypeVar("T")


def _alone(do: Callable[..., T], *args: Any) -> T:
    """Calls it below autograd and autocast, seen by no mode. Guards go here and in this order, not
    when some traceback lets go of a frame."""
    grad = torch.is_grad_enabled()
    # A function mode looks at the backward (watch.py), at sizes and strides as well.
    with torch._C.DisableTorchFunction():
        unseen = torch._C._DisableTorchDispatch()
        below = torch._C._AutoDispatchBelowAutograd()
        as_is = torch._C._DisableAutocast()
        try:
            return do(*args)
        finally:
            del as_is, below, unseen
            torch._C._set_grad_enabled(grad)


class _Memo(dict[tuple[int, int], Tensor]):
    """Copies made on demand, by cell and version."""


class Replayer:
    """Runs the replays of one step."""

    __slots__ = ("_counts", "_nodes", "control", "recorder")

    def __init__(self, nodes: dict[int, weakref.ref[Node]], counts: Any) -> None:
        self._nodes = nodes
        self._counts = counts
        self.recorder: OpRecorder | None = None  # in a traced step
        self.control: Control | None = None  # in one in which every call is made twice

    # ---- As planned -----------------------------------------------------------

    def run(self, burst: Burst) -> bool:
        """Replays a burst; a call whose outputs nobody holds any more is left out. False: it could
        not be replayed to its end."""
        if self.recorder is None:
            return _alone(self._run, burst)
        with self.recorder.op("reprise::recompute"):
            return _alone(self._run, burst)

    def _run(self, burst: Burst) -> bool:
        nodes = self._nodes
        for replay in burst:
            reference = nodes.get(replay.op)
            node = reference() if reference is not None else None
            if node is not None and not self._replay(node, replay.keep, replay.op):
                return False
        return True

    def _replay(self, node: Node, keep: dict[int, int], op: int) -> bool:
        """False: not everything is there. It always is, as the rehearsal has shown; but an executor
        that is wrong about that must be slow, not wrong."""
        if node.args is None:
            return False
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
        if node.flat is None:
            args = [_load(value, own) for value in node.args]
        else:
            args = node.args.copy()
            for position, item in node.flat:
                args[position] = _tensor(item, own)
        kwargs = _load(node.kwargs, own) if node.kwargs else node.kwargs
        used: list[Cell] = []
        for held in node.held:
            if held.tensor is None:
                if held.cell not in used:
                    used.append(held.cell)  # type: ignore[arg-type]
            elif held.reads > 0:
                held.reads -= 1
                if held.reads == 0 and _elsewhere(held):
                    held.tensor = None
        node.replays -= 1
        again = None if self.control is None else _Again(self.control, node, op, own)
        recorder = self.recorder
        number = 0 if recorder is None else recorder.begin(str(node.func))
        out = _call(node, args, kwargs)
        if owner is not None:
            owner.version += 1  # before anything else can fail
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
                # A new life, whatever a use that never came has left of the one before it.
                if cell is not None and cell.id in keep:
                    cell.tensor, cell.version, cell.uses = tensor, 1, keep[cell.id]
        if node.replays == 0:
            _done_with(node)
        for cell in used:
            use(cell)
        return True

    @staticmethod
    def _owner(node: Node) -> Cell | None:
        """The cell a call writes in place, None for one that makes new storages."""
        reference = node.outputs[0] if len(node.outputs) == 1 else None
        cell = None if reference is None else reference()
        return cell if cell is not None and cell.chain[0] is not node else None

    # ---- On demand --------------------------------------------------------------

    def on_demand(self, cell: Cell, version: int) -> Tensor:
        """Returns a copy of a cell at this version, whatever the program says."""
        return _alone(self._on_demand, cell, version)

    def _on_demand(self, cell: Cell, version: int) -> Tensor:
        """Makes a copy from the records, and what it needs first. Copies stay with their cells:
        time matters more than memory when the program is not as planned."""
        memo = _Memo()
        todo = [(cell, version)]
        while todo:
            target, at = todo[-1]
            if _find(memo, target, at) is not None:
                todo.pop()
                continue
            missing = []
            for node in target.chain[_start(memo, target, at) : at]:
                assert node is not None
                for held in node.held:
                    source = held.cell if held.tensor is None else None
                    if source is not None and _find(memo, source, held.version) is None:
                        missing.append((source, held.version))
            if missing:
                todo += missing
                continue
            self._make(memo, target, at)
        made = _find(memo, cell, version)
        assert made is not None
        return made

    def _make(self, memo: _Memo, target: Cell, version: int) -> None:
        start = _start(memo, target, version)
        own = _copy(_find(memo, target, start)) if start else None
        for node in target.chain[start:version]:
            assert node is not None
            args = [_load_from(memo, value, own) for value in node.args or ()]
            kwargs = _load_from(memo, node.kwargs, own)
            out = _call(node, args, kwargs)
            self._counts.on_demand += 1
            if own is not None:
                continue
            for reference, tensor in zip(node.outputs, tensors_in(out), strict=False):
                cell = None if reference is None else reference()
                if cell is target:
                    own = tensor
                elif cell is not None and _find(memo, cell, 1) is None and len(cell.chain) == 1:
                    _keep(memo, cell, 1, tensor)
        assert own is not None
        _keep(memo, target, version, own)


def view_alone(tensor: Tensor, geometry: Geometry) -> Tensor:
    """Returns a view on a copy, as the tensor was that autograd saved."""
    return tensor if _lies_as(tensor, geometry) else _alone(tensor.as_strided, *geometry)


def _lies_as(tensor: Tensor, geometry: Geometry) -> bool:
    return (
        tensor.size() == geometry[0]
        and tensor.stride() == geometry[1]
        and tensor.storage_offset() == geometry[2]
    )


def _view(tensor: Tensor | None, geometry: Geometry) -> Tensor:
    assert tensor is not None
    return tensor if _lies_as(tensor, geometry) else tensor.as_strided(*geometry)


def _find(memo: _Memo, cell: Cell, version: int) -> Tensor | None:
    if cell.tensor is not None and cell.version == version:
        return cell.tensor
    return memo.get((id(cell), version))


def _keep(memo: _Memo, cell: Cell, version: int, tensor: Tensor) -> None:
    memo[id(cell), version] = tensor
    if cell.tensor is None:
        cell.tensor, cell.version = tensor, version


def _start(memo: _Memo, cell: Cell, version: int) -> int:
    """From which version on a cell is made up to another: from nothing where all its calls are
    recorded, else from the copy that is there."""
    if cell.recorded(0, version):
        return 0
    for start in range(version - 1, 0, -1):
        if not cell.recorded(start, start + 1):
            break
        if _find(memo, cell, start) is not None:
            return start
    raise RepriseError(
        f"storage {cell.id} of this step's plan cannot be recomputed at version {version}: an "
        "internal error in Reprise, please report it; set REPRISE_DISABLE=1 to train without it"
    )


def _copy(tensor: Tensor | None) -> Tensor:
    """Returns a copy of the whole storage, because others may still read it."""
    assert tensor is not None
    copy = tensor.untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def use(cell: Cell) -> None:
    """One planned use is over. The last one ends a life, unless the copy is the only way back."""
    cell.uses -= 1
    if cell.uses <= 0 and not _only_way_back(cell):
        cell.tensor, cell.version = None, 0


def _only_way_back(cell: Cell | None) -> bool:
    """Returns whether a copy that is still needed cannot be recomputed."""
    if cell is None or cell.tensor is None or not cell.waiting:
        return False
    return not cell.recorded(0, max(cell.waiting))


def _elsewhere(held: Held) -> bool:
    """Returns whether an argument can be read from its cell from here on."""
    cell = held.cell
    return cell is not None and (cell.tensor is not None or cell.recorded(0, held.version))


def _done_with(node: Node) -> None:
    """The last planned replay is over: what it held can go, unless it is the only way back."""
    for reference in node.outputs:
        cell = None if reference is None else reference()
        if cell is not None and cell.waiting and cell.tensor is None:
            return  # one of several outputs that it alone can make
    node.forget()


def _call(node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if node.short is not None:
        return node.short(args)
    torch._C._set_grad_enabled(node.grad)
    if node.state is None:
        return node.func(*args, **kwargs) if kwargs else node.func(*args)
    before = GeneratorState(node.state.device)
    node.state.restore()
    try:
        return node.func(*args, **kwargs)
    finally:
        surely(before.restore)


class _Again:
    """A call that is made a second time from the same inputs, and whose results are compared."""

    def __init__(self, control: Control, node: Node, op: int, own: Tensor | None) -> None:
        """Before the first time; `own`: what it writes in place."""
        self._control, self._node, self._op, self._own = control, node, op, own
        cells = [None if c is None else c() for c in node.outputs]
        self._storages = [None if c is None else c.id for c in cells]
        self._before = self._flipped = None
        control.begins()
        if own is not None:
            self._before = _copy(own)
            if control.unsteady(self._storages[0]):
                self._flipped = control.flip(self._storages[0], _copy(own))

    def compare(self, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Compares the outputs after an op has run twice."""
        self._compare(args, kwargs, out)
        self._control.ends(self._op)

    def _compare(self, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        control, own = self._control, self._own
        if own is None or self._before is None:
            made = list(tensors_in(out))
            if self._op in control.allocating:
                control.allocated(self._storages, made)
                return
            again = tensors_in(_call(self._node, args, kwargs))
            control.twice(self._op, self._storages, made, again)
            return
        if self._flipped is not None:
            self._written(self._flipped, args, kwargs)
            control.written(self._storages[0], own, self._flipped)
            self._flipped = None
        self._written(self._before, args, kwargs)
        control.twice(self._op, self._storages, [own], [self._before])

    def _written(self, copy: Tensor, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Runs the call again, so that it writes a copy of its target."""
        node = self._node
        _call(
            node, _instead(node.args or [], args, copy), _instead(node.kwargs or {}, kwargs, copy)
        )


def _instead(recorded: Any, loaded: Any, own: Tensor) -> Any:
    """Arguments as they were loaded, with another tensor where the storage stands that the call
    writes."""
    if isinstance(recorded, Own):
        return _view(own, recorded.geometry)
    if isinstance(recorded, (list, tuple)):
        return [_instead(r, v, own) for r, v in zip(recorded, loaded, strict=True)]
    if isinstance(recorded, dict):
        return {key: _instead(value, loaded[key], own) for key, value in recorded.items()}
    return loaded


def _first_life(held: Held) -> Tensor:
    tensor = held.tensor
    assert tensor is not None
    if tensor._version != held.stale:
        refuse_modified(tensor, held.stale)
    return tensor


def _tensor(item: Held | Own, own: Tensor | None) -> Tensor:
    """Returns one tensor argument of a planned replay."""
    if isinstance(item, Own):
        return _view(own, item.geometry)
    if item.tensor is not None:
        return _first_life(item)
    assert item.cell is not None
    assert item.geometry is not None
    return _view(item.cell.tensor, item.geometry)


def _load(value: Any, own: Tensor | None) -> Any:
    """Returns an argument with its tensors, which may be in lists and dicts."""
    if isinstance(value, (Held, Own)):
        return _tensor(value, own)
    if isinstance(value, (list, tuple)):
        return [_load(v, own) for v in value]
    if isinstance(value, dict):
        return {key: _load(v, own) for key, v in value.items()}
    return value


def _load_from(memo: _Memo, value: Any, own: Tensor | None) -> Any:
    """Arguments for a replay on demand: nothing is counted."""
    if isinstance(value, Held):
        if value.tensor is not None:
            return _first_life(value)
        assert value.cell is not None
        assert value.geometry is not None
        return _view(_find(memo, value.cell, value.version), value.geometry)
    if isinstance(value, Own):
        return _view(own, value.geometry)
    if isinstance(value, (list, tuple)):
        return [_load_from(memo, v, own) for v in value]
    if isinstance(value, dict):
        return {key: _load_from(memo, v, own) for key, v in value.items()}
    return value
