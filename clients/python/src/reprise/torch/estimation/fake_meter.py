# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of fake tensors as if they had memory.

    with FakeMeter(alive) as meter: ...; meter.peak()

It sees every storage that an op makes. What lives only inside an op of a real step, such as a
workspace of a library, is assumed (workspaces.py). Costs some microseconds per op.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from reprise.torch.estimation.workspaces import workspace_bytes
from reprise.torch.internals.modes import Op
from reprise.torch.meter.storage_meter import StorageMeter

__all__ = ["FakeMeter"]


class FakeMeter(StorageMeter):
    """A meter for the ops of this thread on fake tensors, wherever they would be."""

    name = "fake"
    exact = True  # nothing is allocated past the ops but what is assumed
    device_type = None

    def __init__(self, alive: Iterable[Tensor]) -> None:
        """`alive`: tensors that count from the beginning."""
        super().__init__("")
        self._before = list(alive)

    def __enter__(self) -> FakeMeter:
        storages = {s._cdata: s for s in (tensor.untyped_storage() for tensor in self._before)}
        self.start(sum(storage.nbytes() for storage in storages.values()), self._before)
        self._before.clear()
        return self

    def ran(self, op: Op) -> None:
        """Counts what an op is assumed to have taken inside itself."""
        beside = workspace_bytes(op.func, op.args, op.out)
        self._peak = max(self._peak, self._live + beside)

    def __exit__(self, *_: object) -> None:
        self.stop()
