# SPDX-License-Identifier: Apache-2.0
"""Runs a recorded call again, and makes the tensors that it runs on.

Calls run below autograd and autocast and outside every dispatch mode, so that nothing observes
them; with the grad mode of the original call, because kernels read it; and with its generator
state, so that random ops draw the same bits. What else a kernel reads, such as the default dtype,
is set by those who make several calls (internals/ambient.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from reprise.torch.internals.ambient import GeneratorState
from reprise.torch.internals.guard import surely
from reprise.torch.internals.saved_hooks import refuse_modified
from reprise.torch.internals.subclass import Geometry
from reprise.torch.tape.records import Cell, Held, Node, Own

T = TypeVar("T")


def alone(do: Callable[..., T], *args: Any) -> T:
    """Calls a function below autograd and autocast, where no mode sees it. The guards are removed
    here in reverse order, not whenever a traceback releases the frame."""
    if torch.is_inference_mode_enabled():
        # A backward may run in it; what is recomputed for it are tensors of a forward that did not.
        with torch._C._InferenceMode(False):
            return alone(do, *args)
    grad = torch.is_grad_enabled()
    # The function mode that watches the backward (watch.py) sees even reads of sizes and strides.
    with torch._C.DisableTorchFunction():
        unseen = torch._C._DisableTorchDispatch()
        below = torch._C._AutoDispatchBelowAutograd()
        as_is = torch._C._DisableAutocast()
        try:
            return do(*args)
        finally:
            del as_is, below, unseen
            torch._C._set_grad_enabled(grad)


def call(node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a recorded call, or its shortcut, and returns its result."""
    if node.short is not None:
        return node.short(args)
    torch._C._set_grad_enabled(node.grad)
    if node.state is None:
        return node.func(*args, **kwargs) if kwargs else node.func(*args)
    before = GeneratorState(node.state.device)
    node.state.restore()
    try:
        return node.func(*args, **kwargs)
    finally:
        surely(before.restore)


def load(value: Any, own: Tensor | None, find: Callable[[Cell, int], Tensor | None]) -> Any:
    """Returns an argument for a replay with its tensors in place, which may be in lists and dicts.
    `own`: the copy that the call writes; `find` returns the copy of a cell at a version."""
    if isinstance(value, Held):
        if value.tensor is not None:
            return first_life(value)
        assert value.cell is not None
        assert value.geometry is not None
        return view(find(value.cell, value.version), value.geometry)
    if isinstance(value, Own):
        return view(own, value.geometry)
    if isinstance(value, (list, tuple)):
        return [load(v, own, find) for v in value]
    if isinstance(value, dict):
        return {key: load(v, own, find) for key, v in value.items()}
    return value


def first_life(held: Held) -> Tensor:
    """Returns the tensor that a call holds, or raises if it was modified."""
    tensor = held.tensor
    assert tensor is not None
    if tensor._version != held.stale:
        refuse_modified(tensor, held.stale)
    return tensor


def _lies_as(tensor: Tensor, geometry: Geometry) -> bool:
    return (
        tensor.size() == geometry[0]
        and tensor.stride() == geometry[1]
        and tensor.storage_offset() == geometry[2]
    )


def view(tensor: Tensor | None, geometry: Geometry) -> Tensor:
    """Returns a view of a copy with the geometry that the argument of a call had."""
    assert tensor is not None
    return tensor if _lies_as(tensor, geometry) else tensor.as_strided(*geometry)


def view_alone(tensor: Tensor, geometry: Geometry) -> Tensor:
    """Returns a view of a copy with the geometry that the saved tensor had."""
    return tensor if _lies_as(tensor, geometry) else alone(tensor.as_strided, *geometry)


def copy(tensor: Tensor | None) -> Tensor:
    """Returns a copy of the whole storage, because others may still read it."""
    assert tensor is not None
    copy = tensor.untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())
