# SPDX-License-Identifier: Apache-2.0
"""The state that a forward starts from, so that the same forward can run again.

    before = Snapshot(Buffers(model))        # just before a forward
    before.rewind()                          # generators and buffers are as they were then
    with before.settings(): ...              # the second run

Checks (check/verify.py) and recovery from memory that runs out (recovery/) use it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

import torch
from torch import nn

from reprise.torch.internals.outside import OutsideCopy

__all__ = ["Buffers", "Generators", "Snapshot"]


class Generators:
    """The states of all generators that a forward may draw from."""

    def __init__(self) -> None:
        self._cpu = OutsideCopy(torch.get_rng_state())
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._cuda = torch.cuda.get_rng_state_all() if cuda else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        """Sets every generator to the remembered state."""
        torch.set_rng_state(self._cpu.tensor())
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class Buffers:
    """The buffers of a model: the tensors and their contents."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [
            (module, name, buffer, OutsideCopy(buffer))
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.bytes = sum(b.nbytes for *_, b in self._saved)

    def restore(self) -> None:
        """Puts the buffers and their contents back."""
        with torch.no_grad():
            for module, name, buffer, content in self._saved:
                buffer.copy_(content.tensor())
                module._buffers[name] = buffer

    def stand_in(self) -> None:
        """Puts copies of the remembered contents in the places of the buffers, so that a forward
        writes nothing that an autograd graph has saved."""
        for module, name, _, content in self._saved:
            module._buffers[name] = content.tensor().clone()


class Restorable(Protocol):
    """Buffers that can be put back."""

    def restore(self) -> None:
        """Puts the buffers back."""


class Snapshot:
    """Generators, buffers and autocast settings just before a forward."""

    def __init__(self, buffers: Restorable) -> None:
        self._generators, self._autocast = Generators(), _Autocast()
        self._buffers = buffers

    def rewind(self) -> None:
        """Puts generators and buffers back."""
        self._generators.restore()
        self._buffers.restore()

    def rewind_generators(self) -> None:
        """Puts the generators back, and leaves the buffers."""
        self._generators.restore()

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Runs what is inside with gradients and under the remembered autocast settings."""
        with torch.enable_grad(), self._autocast.as_it_was():
            yield


class _Autocast:
    """The autocast settings of the host and of a GPU."""

    def __init__(self) -> None:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self._kinds = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in kinds
        ]
        self._cache = torch.is_autocast_cache_enabled()

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Runs what is inside under the remembered autocast settings."""
        with ExitStack() as stack:
            for kind, dtype, enabled in self._kinds:
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=self._cache)
                )
            yield
