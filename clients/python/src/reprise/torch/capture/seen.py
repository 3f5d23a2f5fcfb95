# SPDX-License-Identifier: Apache-2.0
"""The storages of a captured step as its ops reveal them: read, made, or alive before the step.

seen = Seen(storages, ops, meter, place)
seen.argument(tensor)                # the storage that an op reads or writes
seen.outputs(op, number, arguments, chosen, out)
seen.ignored(args, kwargs, out)      # of an op that is not recorded
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from reprise.torch.capture.captured import FORWARD, CapturedOp, CapturedStorage, Chosen
from reprise.torch.capture.identity import Storages
from reprise.torch.capture.place import Place
from reprise.torch.capture.sizes import follow
from reprise.torch.internals.ops import OpKind, outputs_in, tensors_in
from reprise.torch.internals.subclass import parts_of
from reprise.torch.meter.meter import Meter

__all__ = ["Seen"]

_TEMPORARY = 6  # reprise.v1.Category


class Seen:
    """The storages that the ops of one step use."""

    def __init__(
        self, storages: Storages, ops: list[CapturedOp], meter: Meter, place: Place
    ) -> None:
        self.live_begin = 0  # live bytes when the step began
        self._storages = storages
        self._ops = ops
        self._meter = meter
        self._place = place
        self._keep_all = 0

    def before(self, prior: Iterable[Tensor], names: dict[int, tuple[str, int]]) -> None:
        """Registers the tensors alive before the step that may die during it, with name and
        category of some."""
        for tensor in prior:
            storage = self._storages.of(tensor)
            if storage is not None:
                cdata = tensor.untyped_storage()._cdata
                storage.name, storage.category = names.get(cdata, (storage.name, storage.category))
                self._storages.add_program_object(tensor, storage)

    def argument(self, tensor: Tensor) -> CapturedStorage | None:
        """Returns the storage of an argument; None if it has none. A storage that appears for the
        first time gets a synthetic op that makes it, unless it existed before the step."""
        known = len(self._storages.all)
        storage = self._storages.of(tensor)
        if storage is None:
            return None
        new = len(self._storages.all) > known and not storage.prior
        if new and not self._made_unseen(storage):
            storage.birth, storage.prior = 0, True
        elif new:
            storage.birth = len(self._ops)
            external = CapturedOp(None, "reprise.external", self._place.phase(), OpKind.ONCE, False)
            external.writes.append(storage)
            external.live_bytes = external.peak_bytes = self._meter.live()
            self._ops.append(external)
        if not self._storages.is_autograd_object(tensor):
            self._storages.add_program_object(tensor, storage)
        return storage

    def _made_unseen(self, storage: CapturedStorage) -> bool:
        """Returns whether a storage was made in this step by C++ code, rather than before it, where
        Python never saw it (buckets of DistributedDataParallel). It was made before if the known
        storages account for all live bytes without it."""
        if not self._meter.exact:
            return True
        live = self.live_begin
        for seen in self._storages.all:
            if seen is storage:
                continue
            if seen.prior:
                live -= 0 if seen.death is None else seen.bytes
            else:
                live += seen.bytes if seen.death is None else 0
        return self._meter.live() - live >= storage.bytes

    def outputs(
        self,
        op: CapturedOp,
        number: int,
        arguments: tuple[Tensor, ...],
        chosen: Chosen | None,
        out: Any,
    ) -> int:
        """Registers the storages that an op made, and returns their bytes."""
        from_unpacked = any(self._storages.is_autograd_object(t) for t in arguments)
        found: list[CapturedStorage | None] = []
        for tensor in tensors_in(out):
            known = len(self._storages.all)
            storage = self._storages.of(tensor)
            found.append(storage)
            if storage is None:
                continue
            if len(self._storages.all) > known:
                storage.birth, storage.prior = number, False
                storage.in_region = op.in_region
                storage.pinned = self._keep_all > 0
                storage.chosen = chosen or follow(op.arguments, tensor)
                storage.name = f"{op.module}.{op.name}" if op.module else op.name
                if op.phase != FORWARD:
                    storage.category = _TEMPORARY
                op.writes.append(storage)
            elif from_unpacked and storage not in op.writes:
                self._storages.add_autograd_object(tensor)
                continue
            self._storages.add_program_object(tensor, storage)
        op.outputs = tuple(found)
        return sum(s.bytes for s in op.writes)

    def ignored(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Assigns the outputs of an ignored op to the owner of its inputs: autograd or the
        program."""
        ours = any(self._storages.is_autograd_object(t) for t in tensors_in(*args, kwargs))
        for tensor in tensors_in(out):
            if ours:
                self._storages.add_autograd_object(tensor)
            else:
                self.argument(tensor)

    def keep(self, tensor: Tensor) -> None:
        """Saves this tensor whatever the budget, because the program asks for it."""
        for part in parts_of(tensor):
            storage = self.argument(part)
            if storage is not None:
                storage.pinned = True

    def keep_all(self, on: bool) -> None:
        """Saves everything made from now on whatever the budget, or ends that."""
        self._keep_all += 1 if on else -1

    def pin_outputs(self, outputs: Any) -> None:
        """Pins the outputs of the root's forward: no plan discards them."""
        for tensor in outputs_in(outputs):
            for part in parts_of(tensor):
                storage = self._storages.of(part)
                if storage is not None:
                    storage.pinned = True
