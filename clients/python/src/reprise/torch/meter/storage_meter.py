# SPDX-License-Identifier: Apache-2.0
"""The fallback meter: it counts storages with a dispatch mode, in Python only.

It adds the storage of every op's result when it is new, and subtracts it when it
is freed. It needs no compiler, but misses what lives only inside an op
(temporaries, workspaces), storages made without an op, those that grow by
`resize_`, and ops on other threads. So it is never exact, and its peak is at most
the true one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from reprise.agent import abi
from reprise.agent.agent import Agent
from reprise.torch.internals.guard import quiet
from reprise.torch.internals.modes import Mode, Op
from reprise.torch.internals.ops import tensors_in
from reprise.torch.meter.meter import Meter


class StorageMeter(Meter):
    """Counts live bytes of CPU storages through finalizers. It is not exact, and costs several us
    per op."""

    name = "storage"
    exact = False
    why = ""

    def __init__(self, why: str) -> None:
        self.why = why
        self._mode: _Watch | None = None
        self._lock = threading.RLock()
        self._alive: dict[int, int] = {}
        self._live = 0
        self._peak = 0
        self._agent: Agent | None = None

    def start(self, baseline_bytes: int, alive: Iterable[torch.Tensor] = ()) -> None:
        self.stop()
        self.begin(alive)
        self._live = self._peak = baseline_bytes
        self._mode = _Watch(self)
        self._mode.__enter__()

    def begin(self, alive: Iterable[torch.Tensor]) -> None:
        """Begins to count with the storages of these tensors."""
        self._alive = {}
        self._live = 0
        for tensor in alive:
            self.saw(tensor.untyped_storage())
        self._peak = self._live

    def stop(self) -> None:
        """Removes the dispatch mode. Must be called on the thread that started the meter, with no
        later dispatch mode open."""
        self._agent = None
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def live(self) -> int:
        return self._live

    def peak(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        with self._lock:
            self._peak = self._live

    def events_begin(self, agent: Agent) -> None:
        with self._lock:
            self._agent = agent
            agent.alloc(0, self._live, abi.BASELINE)

    def events_end(self) -> None:
        with self._lock:
            self._agent = None

    def saw(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage that no input of the op had. Does nothing if it is known to be alive."""
        key = storage._cdata
        size = storage.nbytes()
        with self._lock:
            if size == 0 or key in self._alive:
                return
            self._alive[key] = size
            self._live += size
            self._peak = max(self._peak, self._live)
            if self._agent is not None:
                self._agent.alloc(key, size, abi.ALLOC)
        weakref.finalize(storage, quiet(self._gone), key).atexit = False

    def _gone(self, key: int) -> None:
        # The lock is reentrant: a collection may start while this thread holds it.
        with self._lock:
            size = self._alive.pop(key, 0)
            self._live -= size
            if self._agent is not None and size:
                self._agent.alloc(key, -size, abi.FREE)


class _Watch(Mode):
    """Shows the meter every storage that an op creates."""

    only_looks = True

    def __init__(self, meter: StorageMeter) -> None:
        super().__init__()
        self._meter = meter

    def op(self, op: Op, types: Any) -> Any:
        """Runs an op and counts the storages that it has made."""
        before = {storage._cdata for storage in storages_in(op.args, op.kwargs)}
        result = op.run()
        for storage in storages_in(result):
            if storage._cdata not in before and storage.device.type == "cpu":
                self._meter.saw(storage)
        return result


def storages_in(*values: Any) -> Iterator[torch.UntypedStorage]:
    """Yields the storages of the tensors among arguments or outputs. A sparse tensor has none; its
    parts are made by ops of their own."""
    for tensor in tensors_in(*values):
        if tensor.layout == torch.strided:
            yield tensor.untyped_storage()
