# SPDX-License-Identifier: Apache-2.0
"""The state that a forward starts from, so that the same forward can run again.

    before = Snapshot(Buffers(model))        # just before a forward
    before.rewind()                          # generators and buffers are as they were then
    with before.settings(): ...              # the second run

    state = WatchedState(model)              # once per model; cheap enough for every step
    inputs = Inputs(args, kwargs); state.take()      # just before a forward
    inputs.again(), state.differs(model)             # can it run again?
    state.restore()

Of a watched state small buffers and inputs are copied. Of the others it is known whether they were
written or freed. Linear in parameters and buffers.

Checks (check/verify.py) and recovery from memory that runs out (recovery/) use it.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reprise.torch.compiled import fast
from reprise.torch.internals.ambient import current, during
from reprise.torch.internals.host import host_bytes
from reprise.torch.internals.outside import OutsideCopy, replaced

# Bytes of a buffer or an input that is copied before every forward: statistics and tokens take
# less, masks and images more.
STATISTICS = 1 << 16

# Returns which parameters still have the gradient that they had, as it was.
Untouched = Callable[[], list[bool]]


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


class Snapshot:
    """Generators, autocast settings, what kernels read beside arguments (ambient.py) and, if they
    are given, buffers just before a forward."""

    def __init__(self, buffers: Buffers | WatchedState | None = None) -> None:
        self._generators, self._buffers, self._around = Generators(), buffers, current()
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in kinds
        ]
        self._cache = torch.is_autocast_cache_enabled()

    def rewind(self) -> None:
        """Puts generators and buffers back."""
        self.rewind_generators()
        if self._buffers is not None:
            self._buffers.restore()

    def rewind_generators(self) -> None:
        """Puts the generators back, and leaves the buffers."""
        self._generators.restore()

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Runs what is inside with gradients and under the remembered settings."""
        with torch.enable_grad(), during(self._around), ExitStack() as stack:
            for kind, dtype, enabled in self._autocast:
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=self._cache)
                )
            yield


# ---- Cheap enough for every step -------------------------------------------------


class WatchedState:
    """The parameters and buffers of a model, found once, and copies of its small buffers, which lie
    in the same place outside the allocator in every step."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters: list[Tensor] = list(model.parameters())
        self._places = [
            (module._buffers, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        strided = [b for *_, b in self._places if b.layout == torch.strided and b.numel()]
        self._small = [b for b in strided if b.nbytes <= STATISTICS]
        self._copies = [
            host_bytes(b.nbytes, b.device).view(b.dtype).view(b.shape) for b in self._small
        ]
        put_back = {id(b) for b in self._small} | {id(b) for *_, b in self._places if not b.numel()}
        self._watched = [*self.parameters, *(b for *_, b in self._places if id(b) not in put_back)]
        # The same way for as long as this lives: the native module may be built meanwhile.
        self._module = fast.library()
        self._on_cpu = all(b.device.type == "cpu" for b in self._small)
        self._versions: Any = None

    def take(self) -> None:
        """Remembers the present state."""
        if self._module is not None and self._on_cpu:
            self._module.copy_all(self._copies, self._small)
        elif self._small:
            with torch.no_grad():
                # Into pinned memory a GPU copies while the forward begins (not run on one).
                torch._foreach_copy_(self._copies, self._small, non_blocking=True)
        self._versions = self._versions_now()

    @property
    def same(self) -> bool:
        """Whether the buffers are still those of the model."""
        return all(found.get(name) is buffer for found, name, buffer in self._places)

    def differs(self, model: nn.Module) -> bool:
        """Returns whether anything changed since that cannot be restored."""
        now = WatchedState(model)
        return (
            [id(p) for p in now.parameters] != [id(p) for p in self.parameters]
            or [id(b) for *_, b in now._places] != [id(b) for *_, b in self._places]
            or self._versions_now() != self._versions
        )

    def _versions_now(self) -> Any:
        if self._module is not None:
            return self._module.versions(self._watched)
        return [t._version for t in self._watched]

    def gradients(self) -> Untouched | None:
        """Returns a check that accumulated gradients are untouched; None if there are none."""
        if self._module is not None:
            taken = self._module.gradients(self.parameters)
            return (
                None if taken is None else partial(self._module.untouched, self.parameters, taken)
            )
        if all(p.grad is None for p in self.parameters):
            return None
        return partial(_untouched, self.parameters, [_gradient(p) for p in self.parameters])

    def restore(self) -> None:
        """Restores the buffers to the remembered state."""
        for device in {b.device for b in self._small if b.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        with torch.no_grad():
            for buffer, copy in zip(self._small, self._copies, strict=True):
                buffer.copy_(copy)


class Inputs:
    """The arguments of a forward."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._arguments = replaced((args, kwargs), Tensor, _Input)

    def again(self) -> tuple[Any, Any] | None:
        """Returns the arguments; None if one was freed or written since."""
        try:
            args, kwargs = replaced(self._arguments, _Input, _Input.tensor)
        except ReferenceError:
            return None
        return args, kwargs


def _gradient(parameter: Tensor) -> tuple[Any, int]:
    """Returns a reference to a gradient, and its version; version -1 if there is none."""
    grad = parameter.grad
    if grad is None:
        return None, -1
    return (lambda: grad) if grad.is_sparse else weakref.ref(grad), grad._version


def _untouched(parameters: list[Tensor], before: list[tuple[Any, int]]) -> list[bool]:
    """Returns which parameters still have the gradient that they had, as it was."""
    now = [p.grad for p in parameters]
    return [
        version < 0 if grad is None else 0 <= version == grad._version and grad is seen()
        for grad, (seen, version) in zip(now, before, strict=True)
    ]


class _Input:
    """A tensor that a forward was called with. A small one is copied outside the allocator; a large
    one is not kept alive."""

    __slots__ = ("_copy", "_version", "_weak")

    def __init__(self, tensor: Tensor) -> None:
        small = tensor.nbytes <= STATISTICS and tensor.layout == torch.strided
        self._weak = None if small else weakref.ref(tensor)
        self._copy = None
        if small:
            self._copy = OutsideCopy(tensor) if tensor.device.type == "cpu" else tensor
        self._version = tensor._version

    def tensor(self) -> Tensor:
        """Returns the input unchanged. Raises ReferenceError if it was freed or written since."""
        if isinstance(self._copy, OutsideCopy):
            return self._copy.tensor()
        found = self._copy if self._weak is None else self._weak()
        if found is None or found._version != self._version:
            raise ReferenceError
        return found
