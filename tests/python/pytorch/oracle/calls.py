# SPDX-License-Identifier: Apache-2.0
"""A training step as a flat list of calls on storages: what `trace` makes and `graph` executes.

A tensor of the trace is a *value*: a position in a storage. Storages are made and freed while the
list is executed; values are made from them when a call needs them. Parameters, buffers, inputs and
constants are static.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from reprise.torch.capture.step_graph import RNG_STATE_BYTES
from reprise.torch.internals.ops import OpKind

__all__ = ["BACKWARD", "FORWARD", "Call", "Traced", "Value", "below_autograd"]

FORWARD, BACKWARD = "PHASE_FORWARD", "PHASE_BACKWARD"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: a position in a storage. A static value holds its tensor itself."""

    storage: int  # -1: static
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    static: Tensor | None = None

    def of(self, storage: torch.UntypedStorage | None) -> Tensor:
        """Returns the tensor that this value describes, on the given storage."""
        if self.static is not None:
            return self.static
        assert storage is not None
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)

    def lies_as(self, tensor: Tensor) -> bool:
        """Returns whether a tensor has the type and the position in its storage that this value
        describes."""
        return (
            tensor.dtype == self.dtype
            and tensor.size() == self.size
            and tensor.stride() == self.stride
            and tensor.storage_offset() == self.offset
        )


@dataclass(slots=True)
class Call:
    """One call. Storages are numbered, versions start at 1."""

    func: Any
    args: tuple[Any, ...]  # a `Value` in place of every tensor
    kwargs: dict[str, Any]
    phase: str
    module: str
    grad: bool
    kind: OpKind = OpKind.PURE
    outputs: list[Value] = field(default_factory=list)  # its tensors, in order
    needs: dict[int, int] = field(default_factory=dict)  # storage -> version
    writes: list[int] = field(default_factory=list)
    mutates: list[int] = field(default_factory=list)
    time_ns: int = 0


@dataclass(slots=True)
class Traced:
    """A training step as a flat list of calls."""

    name: str
    calls: list[Call]
    sizes: list[int]  # of the storages, in bytes
    release: list[int]  # the last call before the module returns that made it
    static_bytes: int
    device: torch.device
    # What the step returns: the loss and the gradients, which may be static values.
    loss: Value
    gradients: dict[str, Value]
    statics: list[Tensor]

    @property
    def state_bytes(self) -> int:
        """The bytes that a saved generator state takes on the device; 0 for a GPU, whose state is
        on the host."""
        return RNG_STATE_BYTES if self.device.type == "cpu" else 0

    def required(self) -> list[int]:
        """Returns the storages of the loss and of the gradients."""
        found = {v.storage for v in (self.loss, *self.gradients.values())}
        return sorted(found - {-1})

    def message(self) -> dict[str, Any]:
        """Returns the step graph as proto3 JSON. It has no workspaces, because only storages are
        counted."""
        last_read = {s: i for i, call in enumerate(self.calls) for s in call.needs}
        made_by = {s: i for i, call in enumerate(self.calls) for s in call.writes}
        backward = next(
            (i for i, call in enumerate(self.calls) if call.phase == BACKWARD), len(self.calls)
        )
        return {
            "name": self.name,
            "source": "torch, traced",
            "static_bytes": self.static_bytes,
            "flavour": "make_fx",
            "required": self.required(),
            "storages": [
                {
                    "id": s,
                    "bytes": size,
                    "name": str(self.calls[made_by[s]].func),
                    "category": 4,
                    "saved_for_backward": made_by[s] < backward <= last_read.get(s, 0),
                    "release_op": self.release[s],
                    "pinned": False,
                }
                for s, size in enumerate(self.sizes)
            ],
            "ops": [self._op(number, call) for number, call in enumerate(self.calls)],
        }

    def _op(self, number: int, call: Call) -> dict[str, Any]:
        """Returns one call as an op of the message."""
        return {
            "id": number,
            "name": str(call.func),
            "phase": call.phase,
            "kind": f"OP_KIND_{call.kind.name}",
            "time_ns": call.time_ns,
            "workspace_bytes": 0,
            "reads": list(call.needs),
            "writes": call.writes,
            "mutates": call.mutates,
            "module": call.module,
            "call": 0,
            "ordinal": number,
            "state_bytes": self.state_bytes if call.kind == OpKind.SEEDED else 0,
        }


@contextmanager
def below_autograd(grad: bool) -> Iterator[None]:
    """Runs calls as they ran in the step: below autograd and autocast, and with their grad mode,
    because kernels read it."""
    before = torch.is_grad_enabled()
    guards = [torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast()]
    torch._C._set_grad_enabled(grad)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(before)
        while guards:
            guards.pop()
