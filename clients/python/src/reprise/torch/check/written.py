# SPDX-License-Identifier: Apache-2.0
"""Checks the buffers of a planned step: its forwards write them, as they do without a plan, and
nothing that is made again writes them once more.

    written = Written(model)             # before the step
    written.enters(); written.left()     # around every forward of the root
    written.differing(), written.checked # after its backward

Running statistics, counters, whatever a model updates in its forward. Some kernels write what they
do not declare; one of them that runs again updates a buffer twice, and no gradient shows it. So the
buffers have the same bits at the end of the backward as at the end of the forward.

What differs may still be the program's doing: an update of its own after the forward, batch norm in
a forward that runs again within the backward (torch.utils.checkpoint). The step that finds out why
values differ tells (control.py). `seen`: those whose version counter has moved, so that the program
may have written them in this step and in no other one.

Kept of a buffer are 128 bits. Three passes over all buffers, in checked steps.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.compiled.digest import digest
from reprise.torch.internals.ops import PLAIN_TYPES


@dataclass(frozen=True, slots=True)
class _State:
    tensor: weakref.ref[Any]
    version: int
    digest: bytes


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns the buffers of a model that can be compared, by name."""
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if type(buffer) in PLAIN_TYPES
        and buffer.layout == torch.strided
        and buffer.device.type != "meta"
        and not buffer.is_inference()
    }


def digests_of(model: nn.Module) -> dict[str, bytes]:
    """Returns a digest of every buffer of the model, by name."""
    return {name: digest(buffer) for name, buffer in buffers_of(model).items()}


class Written:
    """Finds buffers that one checked step has written twice."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._begin = {name: state.digest for name, state in self._now().items()}
        self._left: dict[str, _State] | None = None  # as the last forward has left them
        self._differing: list[str] = []
        self._checked: set[str] = set()
        self.seen: set[str] = set()
        self._closed = False

    def _now(self) -> dict[str, _State]:
        model = self._model()
        buffers = {} if model is None else buffers_of(model)
        return {n: _State(weakref.ref(b), b._version, digest(b)) for n, b in buffers.items()}

    def enters(self) -> None:
        """Notes that a forward of the root begins."""
        if self._left is not None and not self._closed:
            self._compare()

    def left(self) -> None:
        """Notes that a forward of the root is over."""
        self._left = self._now()

    def close(self) -> None:
        """Stops watching, because the backward is over: later writes to buffers are not looked
        at. Calling it again does nothing."""
        if not self._closed:
            self._compare()
        self._closed = True

    def _compare(self) -> None:
        now = self._now()
        for name, state in (self._left or {}).items():
            if name not in now or state.tensor() is not now[name].tensor():
                continue  # the program has put another one in its place
            if state.digest != self._begin.get(name):
                self._checked.add(name)
            if state.digest != now[name].digest and name not in self._differing:
                self._differing.append(name)
                if state.version != now[name].version:
                    self.seen.add(name)

    @property
    def checked(self) -> int:
        """Buffers that the step's forwards wrote, and that were compared."""
        return len(self._checked)

    def differing(self) -> list[str]:
        """Returns the names of the buffers that were written again after the forward."""
        self.close()
        return self._differing
