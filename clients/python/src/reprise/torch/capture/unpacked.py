# SPDX-License-Identifier: Apache-2.0
"""Which autograd node of a captured step reads which saved tensors, and until when it holds them.

    unpacked.enter()                        # an op of the backward is about to run
    unpacked.take(storage, slot, module, source, alias)     # a saved tensor is unpacked
    unpacked.read_by(op)                    # the op reads what its node has unpacked

The tensors that a node unpacks live until the node returns. Autograd tells its hooks neither which
node unpacks nor when it ends, so the running node is looked up before every op.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reprise.torch.capture.captured import CapturedOp, CapturedStorage, SavedTensor, Unpack
from reprise.torch.internals.engine import graph_is_kept
from reprise.torch.internals.guard import quiet


def reads(op: CapturedOp, storages: Iterable[CapturedStorage]) -> None:
    """Adds storages to those that an op reads, once each, except those that it made."""
    for storage in storages:
        if storage not in op.reads and storage not in op.writes:
            op.reads.append(storage)


class Unpacked:
    """The autograd nodes of one step and the saved tensors that they read."""

    def __init__(self, ops: list[CapturedOp]) -> None:
        self.unpacks: list[Unpack] = []
        # Where the tensor was saved that was unpacked last: the module, the line of the program.
        self.module = self.source = ""
        self._ops = ops
        self._saved_by: dict[int, str] = {}  # slot -> autograd node
        self._task, self._kept = -1, False  # the running backward, and whether it keeps its graph
        self._node: tuple[str, int] | None = None
        self._number = 0
        self._of_node: list[CapturedStorage] = []
        self._pending: list[CapturedStorage] = []
        self._alive: list[weakref.ref[Tensor]] = []

    def enter(self) -> None:
        """Notes which autograd node runs. A new node forgets what an earlier one has unpacked."""
        node: Any = torch._C._current_autograd_node()
        key = None if node is None else (node.name(), node._sequence_nr())
        if key != self._node:
            self._node = key
            self._number += 1
            self._of_node.clear()
            self.module = self.source = ""

    def leave(self) -> None:
        """Notes that no autograd node is running any more."""
        self._node = None
        self._of_node.clear()

    def take(
        self, storage: CapturedStorage, slot: int, module: str, source: str, alias: Tensor
    ) -> None:
        """Notes that the running node unpacks a saved tensor. `slot` is -1 if it was saved outside
        the root's forwards; `module` and `source` say where."""
        self._pending.append(storage)
        self.module, self.source = module, source
        if slot >= 0:
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self._task, self._kept = task, graph_is_kept()
            self.unpacks.append(Unpack(slot, len(self._ops), self._kept))
            if self._node is not None:
                self._saved_by.setdefault(slot, self._node[0])
        self._alive.append(weakref.ref(alias, quiet(partial(self._released, storage))))

    def keeps(self) -> bool:
        """Returns whether the running backward keeps its graph for another one."""
        return self._kept and torch._C._current_graph_task_id() == self._task

    def read_by(self, op: CapturedOp) -> None:
        """Adds what the running node has unpacked to the storages that an op reads."""
        reads(op, (*self._pending, *self._of_node))
        self._of_node.extend(self._pending)
        self._pending.clear()
        if self._of_node:
            op.node = self._number

    def finish(self) -> None:
        """Ends the step: tensors that were unpacked but read by no op count as read by the last
        op."""
        if self._pending:
            reads(self._ops[-1], self._pending)
        self._alive.clear()

    def _released(self, storage: CapturedStorage, _: Any) -> None:
        """Notes the end of an unpacked tensor. The engine frees what a node saved when the node
        returns and adds up gradients only then, still under the node's name; those additions do not
        read the saved tensors."""
        if storage in self._of_node:
            self._of_node.remove(storage)

    def whose(self, number: int, slot: SavedTensor) -> SavedTensor:
        """Returns the saved tensor with `output` set if it is an output of the last call rather
        than an input of the next one. Autograd does not say which; the name of the node that
        unpacks it usually tells. In doubt it is an output."""
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
    """Returns the name of an operator or autograd node, in lower case without underscores, to
    compare."""
    return name.replace("_", "").lower()
