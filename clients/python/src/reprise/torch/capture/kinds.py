# SPDX-License-Identifier: Apache-2.0
"""The kind of a captured call: whether it may run again, what it writes, and its signature.

    op.kind = kind_of(op, args, kwargs, out, arguments)     # once op's storages are known

Decided from the call and from what was observed of its storages; ops.py knows single operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from reprise.torch.capture.captured import FORWARD, CapturedOp
from reprise.torch.internals.ops import (
    PLAIN_TYPES,
    OpKind,
    first_kind,
    is_collective,
    mutated_positions,
    tensors_in,
)

__all__ = ["CAPTURED_TYPES", "is_plain", "kind_of", "signature_of", "written_by"]

# An estimated step runs on fake tensors (estimate.py).
CAPTURED_TYPES = PLAIN_TYPES | {FakeTensor}


def kind_of(
    op: CapturedOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    arguments: tuple[Tensor, ...],
) -> OpKind:
    """Returns the kind of a call, decided by what it did to storages, not by its schema alone."""
    if is_collective(op.func):
        return OpKind.COLLECTIVE
    outputs = tuple(tensors_in(out))
    aliases = {s for s in op.outputs if s is not None} - set(op.writes)
    if outputs and not op.writes and not op.mutates and aliases <= set(op.arguments):
        return OpKind.VIEW
    kind = first_kind(op.func, args, kwargs)
    if kind is OpKind.ONCE:
        return kind
    if op.phase != FORWARD:
        return OpKind.ONCE if op.mutates else kind
    simple = all(is_plain(t) for t in (*arguments, *outputs))
    if not op.in_region or not outputs or not simple:
        return OpKind.ONCE
    if op.mutates:
        # An in-place op is replayed together with the op that made the storage, on a private copy.
        (*others, target) = op.mutates
        alone = not others and not op.writes and target.in_region and not target.prior
        return kind if alone and aliases <= {target} else OpKind.ONCE
    return OpKind.ONCE if aliases else kind


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that a call writes in place according to its schema."""
    written = [
        kwargs.get(at) if isinstance(at, str) else args[at] if at < len(args) else None
        for at in mutated_positions(func)
    ]
    return list(tensors_in(*written))


def is_plain(tensor: Tensor) -> bool:
    """Returns whether a tensor is strided and its bits are its values, so that storage and strides
    are enough to make it again."""
    return (
        type(tensor) in CAPTURED_TYPES
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Describes the arguments of a call by data types, ranks and kinds, without sizes."""

    def of(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{value.dtype}:{value.dim()}:{value.device.type}"
        if isinstance(value, (list, tuple)):
            if all(isinstance(v, int) for v in value):
                return f"ints:{len(value)}"
            return "[" + ",".join(of(v) for v in value) + "]"
        return type(value).__name__

    return ",".join([*(of(v) for v in args), *(f"{k}={of(v)}" for k, v in kwargs.items())])
