# SPDX-License-Identifier: Apache-2.0
"""What the tape remembers so that it can recompute a storage.

                    +--------- Held(argument) ----> tensor of the program (first life)
    Cell <-chain- Node                        \\---> Cell (a later life)
      ^             |
      |             +- - weak - -> the cells it makes
    Ref (kept by autograd instead of the tensor)

A *cell* is one storage that the plan discards: the calls that made and then wrote it (its chain),
and its recomputed copy while there is one. The storage's first life is the one in the forward; a
recomputed copy is a later life. A *node* is one recorded call. Autograd owns everything: when it
releases the last `Ref`, the records and what they hold are freed. All references back are weak, so
no record waits for the garbage collector.

A storage is identified by an attribute on its Python object, which lives exactly as long as the
storage itself, whatever views and aliases come and go.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from reprise.torch.compiled.shortcut import Shortcut
from reprise.torch.internals.ambient import Ambient, GeneratorState, current
from reprise.torch.internals.guard import told
from reprise.torch.internals.modes import counted
from reprise.torch.internals.ops import hidden_writes, without_statistics
from reprise.torch.internals.saved_hooks import GONE, refuse_stale
from reprise.torch.internals.subclass import Geometry, geometry_of, version_of

_CELL = "_reprise_cell"


class _Referred:
    """May be referred to weakly."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class Cell(_Referred):
    """One storage that the plan discards."""

    id: int
    # The call that made it, then those that wrote it in place; None for a call not recorded.
    chain: list[Node | None]
    dtype: torch.dtype
    engine: weakref.ref[Any]
    # The recomputed copy, how many calls of the chain it has seen (0: there is no copy), and how
    # often it will still be used.
    tensor: Tensor | None = None
    version: int = 0
    uses: int = 0
    # By version: how many discarded tensors, not yet unpacked, and arguments of recorded calls need
    # it.
    waiting: dict[int, int] = field(default_factory=dict)

    def wait(self, version: int) -> None:
        """Counts one more reader of this version."""
        self.waiting[version] = self.waiting.get(version, 0) + 1

    def waited(self, version: int) -> None:
        """Counts one reader of this version less."""
        self.waiting[version] -= 1
        if not self.waiting[version]:
            del self.waiting[version]

    def recorded(self, first: int, end: int) -> bool:
        """Returns whether these calls of the chain can run again."""
        return all(n is not None and n.args is not None for n in self.chain[first:end])


@dataclass(slots=True, eq=False)
class Held:
    """A tensor argument of a recorded call: the tensor itself, its cell, or first the one and then
    the other."""

    tensor: Tensor | None
    stale: int  # its version counter, which reveals a write that was not observed
    reads: int  # how many replays still read the first life; -1: unknown
    cell: Cell | None = None
    version: int = 0
    geometry: Geometry | None = None


@dataclass(slots=True, eq=False)
class Own:
    """Stands for the storage that a call writes in place; a replay uses the copy that is being
    made."""

    geometry: Geometry


@dataclass(slots=True, eq=False)
class Node(_Referred):
    """One recorded call, which can run again."""

    func: Any
    replays: int
    writes: bool = False  # it writes a cell in place
    fetches: bool = False  # it brings a storage back from host memory (parked.py)
    # The arguments, with a `Held` or `Own` in place of every tensor; None once the last planned
    # replay has run. `held`: those tensors. `flat`: their positions; None if some are in lists or
    # named.
    args: list[Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    held: Sequence[Held] = ()
    flat: list[tuple[int, Held | Own]] | None = None
    # Some kernels make less without gradients (mkldnn_rnn_layer makes no workspace).
    grad: bool = field(default_factory=torch.is_grad_enabled)
    around: Ambient = field(default_factory=current)  # what else a kernel reads
    state: GeneratorState | None = None  # of the generator, before the call
    short: Shortcut | None = None  # runs instead of the call
    # The cells that it makes, by output; for a call that writes in place, the cell it writes.
    outputs: list[weakref.ref[Cell] | None] = field(default_factory=list)

    def forget(self) -> None:
        """Releases the arguments of a call that will not run again."""
        for held in self.held:
            if held.cell is not None:
                held.cell.waited(held.version)
        self.args, self.kwargs, self.held, self.flat = None, {}, (), None
        self.state = self.short = None


class Ref:
    """What autograd keeps instead of a tensor that is discarded."""

    __slots__ = (
        "cell",
        "firsts",
        "geometry",
        "given",
        "life",
        "made",
        "run",
        "slot",
        "stale",
        "version",
    )

    def __init__(self, run: Any, slot: int, cell: Cell, version: int, geometry: Geometry) -> None:
        # The unpacked tensor, for the case that the same autograd node unpacks it again. The node
        # holds it anyway until it releases this `Ref`.
        self.made: Tensor | None = None
        # How many unpacks still return the tensor that was saved, which is `made` until then.
        self.firsts = self.stale = 0
        cell.wait(version)
        self.given: Any = None  # what a checked step compares the tensor with
        self.run = run
        self.life = run.engine.life
        self.slot = slot
        self.cell: Cell | None = cell
        self.version = version
        self.geometry = geometry

    def hold(self, tensor: Tensor, firsts: int) -> None:
        """Holds the saved tensor for this many unpacks; the last of them discards it."""
        self.made, self.firsts, self.stale = tensor, firsts, version_of(tensor)

    def let_go(self) -> None:
        """Releases what autograd keeps for a backward that will not run."""
        self.cell = self.made = self.given = self.life = None

    def plainly(self) -> Tensor:
        """Returns the tensor after an internal error; recomputes it on demand if necessary."""
        made: Tensor = self.run.rescue(self)
        return made


class Kept:
    """What autograd keeps of a tensor that the plan saves."""

    __slots__ = ("life", "run", "slot", "tensor", "version")

    def __init__(self, run: Any, slot: int, tensor: Tensor) -> None:
        self.run = run
        self.life = run.engine.life
        self.slot = slot
        self.tensor: Tensor | None = tensor
        self.version = version_of(tensor)

    def let_go(self) -> None:
        """Releases what autograd keeps for a backward that will not run."""
        self.tensor = self.life = None

    def plainly(self) -> Tensor:
        """Returns the tensor without replaying anything. Raises autograd's error if it was released
        or modified."""
        if self.tensor is None:
            raise told(RuntimeError(GONE))
        if version_of(self.tensor) != self.version:
            refuse_stale(self.tensor, self.version)
        return self.tensor


def cell_of(tensor: Tensor, engine: object) -> Cell | None:
    """Returns the cell of a tensor's storage; None if this engine has made none."""
    cell: Cell | None = getattr(tensor.untyped_storage(), _CELL, None)
    return cell if cell is not None and cell.engine() is engine else None


def mark(tensor: Tensor, cell: Cell) -> None:
    """Makes a cell the one of a tensor's storage."""
    setattr(tensor.untyped_storage(), _CELL, cell)


def unmark(tensor: Tensor) -> None:
    """Undoes `mark`. A storage must not refer to a cell that holds the storage itself."""
    delattr(tensor.untyped_storage(), _CELL)


def alias_below(tensor: Tensor) -> Tensor:
    """Returns an alias without grad_fn that shares the version counter. For use inside a dispatch
    mode.

    Below autograd, `detach` would give the alias a counter of its own, and a write to the original
    would go unnoticed."""
    return counted(tensor.detach)  # type: ignore[no-any-return]


def record(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    replays: int,
    first_life_reads: tuple[int, ...],
    own: Cell | None,
    engine: object,
) -> Node:
    """Returns the record of a call. It holds the call's tensors as long as its replays need
    them."""
    node = Node(func, replays)
    node.writes = own is not None
    recorder = _Recorder(first_life_reads, own, engine)
    held = list(args)
    flat: list[tuple[int, Held | Own]] = []
    direct = True
    for position, value in enumerate(args):
        if isinstance(value, Tensor):
            held[position] = item = recorder.tensor(value)
            flat.append((position, item))
        elif isinstance(value, (list, tuple)):
            before = recorder.seen
            made = recorder.hold(value)
            if recorder.seen != before:
                held[position], direct = made, False
    if kwargs:
        node.kwargs = {key: recorder.hold(value) for key, value in kwargs.items()}
        direct = direct and recorder.seen == len(flat)
    if hidden_writes(func, args):
        node.func, left = without_statistics(func, tuple(held))
        held = list(left)
        flat = [(position, item) for position, item in flat if held[position] is item]
        recorder.held = [item for _, item in flat if type(item) is Held]
    # The function that an overload calls, which saves a Python frame.
    node.func = getattr(node.func, "_op", node.func)
    node.args, node.held, node.flat = held, recorder.held, flat if direct else None
    return node


@dataclass(slots=True, eq=False)
class _Recorder:
    """Walks the arguments of one call. (A nested function that calls itself would be a reference
    cycle, and keep the cell until the garbage collector runs.)"""

    _reads: tuple[int, ...]
    _own: Cell | None
    _engine: object
    seen: int = 0  # how many tensors
    held: list[Held] = field(default_factory=list)

    def tensor(self, value: Tensor) -> Held | Own:
        """Returns what the record has in place of a tensor argument."""
        reads, at = self._reads, self.seen
        self.seen = at + 1
        planned = reads[at] if at < len(reads) else -1
        cell = cell_of(value, self._engine)
        if cell is None:
            tensor = _first_life(value)
            held = Held(tensor, tensor._version, planned or -1)
        else:
            geometry = geometry_of(value)
            if cell is self._own:
                return Own(geometry)
            version = len(cell.chain)
            cell.wait(version)
            kept = _first_life(value) if planned > 0 else None
            stale = 0 if kept is None else kept._version
            held = Held(kept, stale, planned, cell, version, geometry)
        self.held.append(held)
        return held

    def hold(self, value: Any) -> Any:
        """Returns an argument with its tensors replaced, which may be in lists."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, (list, tuple)):
            return [self.hold(v) for v in value]
        return value


def _first_life(tensor: Tensor) -> Tensor:
    """Returns what a record holds of a tensor: parameters as they are, of others an alias. One with
    a grad_fn would keep autograd's graph, and through it this record, alive; and a capture would
    take any other for the program's."""
    return tensor if tensor.is_leaf and tensor.requires_grad else alias_below(tensor)
