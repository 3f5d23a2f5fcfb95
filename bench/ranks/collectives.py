# SPDX-License-Identifier: Apache-2.0
"""The collectives of a process in the order in which they are called, those of
DistributedDataParallel and of DTensor included.

    calls = Collectives()
    calls.list         # ("c10d.allreduce_", (4096,)): the operator, and the sizes of its tensors

Each operator of torch's two libraries gets a function at the key of autograd, which notes the call
and goes on below it. Calls that Reprise makes for itself are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Collectives"]

_NAMES = {
    "c10d": (
        "allreduce_",
        "allreduce_coalesced_",
        "allgather_",
        "_allgather_base_",
        "allgather_into_tensor_coalesced_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
        "broadcast_",
        "reduce_",
        "gather_",
        "scatter_",
        "alltoall_",
        "alltoall_base_",
        "barrier",
        "send",
        "recv_",
        "recv_any_source_",
    ),
    "_c10d_functional": (
        "all_reduce",
        "all_reduce_",
        "all_reduce_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "all_to_all_single",
        "broadcast",
        "broadcast_",
    ),
}


class Collectives:
    """Notes every collective that is called from now on, except while `own` is not zero. Those of
    `_c10d_functional` call those of `c10d`: only the outer one is noted."""

    def __init__(self) -> None:
        self.list: list[tuple[str, tuple[int, ...]]] = []
        self.own = 0
        self._inside = 0
        self._libraries = []
        keys: Any = torch._C
        below = keys._dispatch_keyset_full_after(torch._C.DispatchKey.ADInplaceOrView)
        for space, names in _NAMES.items():
            library = torch.library.Library(space, "IMPL")
            self._libraries.append(library)
            for name in names:
                packet = getattr(getattr(torch.ops, space), name, None)
                if packet is not None:
                    library.impl(
                        name, self._noting(f"{space}.{name}", packet.default, below),
                        "AutogradCPU", with_keyset=True,
                    )  # fmt: skip

    def _noting(self, name: str, operator: Any, below: Any) -> Any:
        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = _tensors(args)
            # A copy of the model on fake tensors asks no other rank.
            fake = any(isinstance(tensor, FakeTensor) for tensor in tensors)
            if not (self.own or self._inside or fake):
                self.list.append((name, tuple(tensor.numel() for tensor in tensors)))
            self._inside += 1
            try:
                return operator.redispatch(keyset & below, *args, **kwargs)
            finally:
                self._inside -= 1

        return call


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return []
