# SPDX-License-Identifier: Apache-2.0
"""What the backward of a captured step takes back: by which autograd node, and until when.

    unpacked.enter()                        # an op of the backward is about to run
    unpacked.take(storage, slot, module, alias)     # a saved tensor is unpacked
    unpacked.read_by(op)                    # the op reads what its node has unpacked

The tensors that a node unpacks live until the node returns; autograd tells its hooks neither which
node asks nor when it ends, so the node under way is looked at with every op.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reprise.torch.capture.captured import CapturedOp, CapturedStorage, SavedTensor, Unpack
from reprise.torch.internals.guard import quiet
from reprise.torch.internals.passes import graph_is_kept

__all__ = ["Unpacked", "reads"]


def reads(op: CapturedOp, storages: Iterable[CapturedStorage]) -> None:
    """Notes that an op reads these, once each, unless it made them."""
    for storage in storages:
        if storage not in op.reads and storage not in op.writes:
            op.reads.append(storage)


class Unpacked:
    """The autograd nodes of one step and the saved tensors that they read."""

    def __init__(self, ops: list[CapturedOp]) -> None:
        self.unpacks: list[Unpack] = []
        self.module = ""  # of what was unpacked last
        self._ops = ops
        self._saved_by: dict[int, str] = {}  # slot -> autograd node
        self._task, self._kept = -1, False  # the backward under way: does it keep its graph?
        self._node: tuple[str, int] | None = None
        self._number = 0
        self._of_node: list[CapturedStorage] = []
        self._pending: list[CapturedStorage] = []
        self._alive: list[weakref.ref[Tensor]] = []

    def enter(self) -> None:
        """Which autograd node runs; what an earlier one unpacked is gone with it."""
        node: Any = torch._C._current_autograd_node()
        key = None if node is None else (node.name(), node._sequence_nr())
        if key != self._node:
            self._node = key
            self._number += 1
            self._of_node.clear()
            self.module = ""

    def leave(self) -> None:
        """Notes that no autograd node is running any more."""
        self._node = None
        self._of_node.clear()

    def take(self, storage: CapturedStorage, slot: int, module: str, alias: Tensor) -> None:
        """The node under way unpacks a saved tensor; slot -1: of no forward of the root."""
        self._pending.append(storage)
        self.module = module
        if slot >= 0:
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self._task, self._kept = task, graph_is_kept()
            self.unpacks.append(Unpack(slot, len(self._ops), self._kept))
            if self._node is not None:
                self._saved_by.setdefault(slot, self._node[0])
        self._alive.append(weakref.ref(alias, quiet(self._released(storage))))

    def keeps(self) -> bool:
        """Returns whether the running backward keeps its graph for another one."""
        return self._kept and torch._C._current_graph_task_id() == self._task

    def read_by(self, op: CapturedOp) -> None:
        """An op reads what its node has unpacked."""
        reads(op, (*self._pending, *self._of_node))
        self._of_node.extend(self._pending)
        self._pending.clear()
        if self._of_node:
            op.node = self._number

    def finish(self) -> None:
        """The step has ended: what was unpacked and read by no op, the last one reads."""
        if self._pending:
            reads(self._ops[-1], self._pending)
        self._alive.clear()

    def _released(self, storage: CapturedStorage) -> Callable[[Any], None]:
        """The engine releases what a node saved when it returns, and only then adds up gradients,
        still under the node's name: those additions do not hold it."""

        def gone(_: Any) -> None:
            if storage in self._of_node:
                self._of_node.remove(storage)

        return gone

    def whose(self, number: int, slot: SavedTensor) -> SavedTensor:
        """Is it an output of the last call or an input of the next one? Autograd does not say; the
        name of the node that unpacks it does, mostly. In doubt an output."""
        before = self._ops[slot.op - 1]
        made = (*before.writes, *before.mutates, *before.outputs)
        if all(storage is not slot.storage for storage in made):
            return slot
        node = _plain(self._saved_by.get(number, "").partition("Backward")[0])
        after = self._ops[slot.op].name if slot.op < len(self._ops) else ""
        following = _plain(after.split(".")[1] if "." in after else "")
        own = _plain(before.name.split(".")[1] if "." in before.name else "")
        return replace(slot, output=node == own or node != following)


def _plain(name: str) -> str:
    """Of an operator or of its autograd node."""
    return name.replace("_", "").lower()
