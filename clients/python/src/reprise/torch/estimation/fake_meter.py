# SPDX-License-Identifier: Apache-2.0
"""Fake tensors, and a meter that counts their bytes as if they had memory.

    with FakeTensors() as fakes:
        with fakes.counted(alive) as meter: ...
        meter.peak()

The meter sees every storage that an op makes. What lives only inside an op of a real step, such as
a workspace of a library, is assumed (workspaces.py). It is the mode of the fake tensors itself that
counts: each further mode would cost as much as a third of a fake op.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from reprise.base.errors import RepriseError
from reprise.torch.estimation.values import Values
from reprise.torch.estimation.workspaces import workspace_bytes
from reprise.torch.internals.contracts import FAKE_WORK
from reprise.torch.internals.ops import DEVICE, IGNORED
from reprise.torch.meter.storage_meter import StorageMeter, storages_in

# Collectives of fully_shard: they write their first argument.
_COLLECTIVES = ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::allreduce_")
_LOG = logging.getLogger("torch._subclasses.fake_tensor")


class FakeMeter(StorageMeter):
    """Counts the bytes of fake tensors, wherever they would be."""

    name = "fake"
    exact = True  # nothing is allocated past the ops but what is assumed

    def took(self, beside: int) -> None:
        """Counts what an op is assumed to have taken inside itself."""
        self._peak = max(self._peak, self._live + beside)


class FakeTensors(FakeTensorMode):
    """A mode in which tensors have no memory, no op waits for other ranks, and what a program
    checks is so. `shards`: of a model that fully_shard has divided, whose collectives it answers;
    others are refused."""

    def __init__(self, *, shards: bool = False) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.shards = shards
        self._meter: FakeMeter | None = None
        self.values = Values()

    @contextmanager
    def counted(self, alive: Iterable[Tensor]) -> Iterator[FakeMeter]:
        """Counts the tensors that ops make from now on. `alive`: those that count from the
        beginning. TorchScript compiles a function anew after some runs, to other kernels: these
        runs are none of them. torch logs the frames of an op that has no fake; who asked for the
        step says it in a line."""
        meter = self._meter = FakeMeter("")
        meter.begin(alive)
        del alive  # they may die before this ends
        disabled, _LOG.disabled = _LOG.disabled, True
        try:
            with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                yield meter
        finally:
            self._meter, _LOG.disabled = None, disabled

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        kwargs = kwargs or {}
        known = self.values.asked(func, args)
        if known is not None:
            return known
        if "c10d" in func.namespace:
            work = FAKE_WORK.get() if self.shards and func.name() in _COLLECTIVES else None
            if work is not None:
                return args[0], work().boxed()
            raise RepriseError(f"the forward communicates with other ranks ({func.name()})")
        result = self._run(func, types, args, kwargs)
        self.values.saw(func, args, kwargs, result)
        return result

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> object:
        """Runs an op, and counts what it has made."""
        meter = self._meter
        if meter is None or func in IGNORED:
            return super().__torch_dispatch__(func, types, args, kwargs)
        before = {storage._cdata for storage in storages_in(*args, kwargs)}
        self._meter = None  # what an op makes of parts of its own is not seen
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._meter = meter
        if result is NotImplemented:  # a tensor of a kind that has no fake
            return result
        for storage in storages_in(result):
            if storage._cdata not in before:
                meter.saw(storage)
        meter.took(workspace_bytes(func, args, result))
        return result
