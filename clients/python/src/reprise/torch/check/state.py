# SPDX-License-Identifier: Apache-2.0
"""The state that a forward starts from, so that the same forward can run again.

    generators, buffers, autocast = Generators(), Buffers(model), Autocast()    # before it
    generators.restore(); buffers.restore()
    with autocast.as_it_was(): ...                                              # the second run

Checks (verify.py) and recovery from memory that runs out use it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from reprise.torch.internals.outside import OutsideCopy

__all__ = ["Autocast", "Buffers", "Generators"]


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
        """Copies take their places: what a graph has saved of them is not written."""
        for module, name, _, content in self._saved:
            module._buffers[name] = content.tensor().clone()


class Autocast:
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
