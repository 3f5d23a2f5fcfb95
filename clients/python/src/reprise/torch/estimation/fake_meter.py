# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of fake tensors as if they had memory.

    with FakeMeter(alive) as meter: ...; meter.peak()

It sees every storage that an op makes, so what lives only inside an op of a real step, such as a
workspace of a library, is not counted. Costs some microseconds per op.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.agent.agent import Agent
from reprise.torch.internals.guard import quiet
from reprise.torch.internals.ops import tensors_in

__all__ = ["FakeMeter"]


class FakeMeter(TorchDispatchMode):
    """A meter (meter/meter.py) for the ops of this thread on fake tensors."""

    name, exact, why = "fake", True, ""

    def __init__(self, alive: Iterable[Tensor] = ()) -> None:
        """`alive`: tensors that count from the beginning."""
        super().__init__()
        self._live = self._peak = 0
        self._seen: dict[int, int] = {}
        for tensor in alive:
            self._saw(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self._saw(tensor)
        return out

    def _saw(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen[key] = size = storage.nbytes()
        self._live += size
        self._peak = max(self._peak, self._live)
        weakref.finalize(storage, quiet(self._gone), key).atexit = False

    def _gone(self, key: int) -> None:
        self._live -= self._seen.pop(key, 0)

    def start(self, baseline_bytes: int, alive: Iterable[Tensor] = ()) -> None: ...
    def stop(self) -> None: ...
    def events_begin(self, agent: Agent) -> None: ...
    def events_end(self) -> None: ...

    def wait_above(self, most_bytes: int | None) -> bool:
        """Does nothing: nothing is freed late."""
        return False

    def take_beyond(self) -> int:
        """Returns 0: there is no allocator."""
        return 0

    def blocks(self) -> list[tuple[int, int, int]]:
        """Returns nothing: fake tensors have no addresses."""
        return []

    def live(self) -> int:
        """Returns how many bytes are alive now."""
        return self._live

    def peak(self) -> int:
        """Returns the most bytes alive since the last `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Resets the peak to the current value of `live()`."""
        self._peak = self._live
