# SPDX-License-Identifier: Apache-2.0
"""The kind of a captured call: whether it may run again, what it writes, its signature, and how
large what it makes may become if the data decides.

    op.kind = kind_of(op, args, kwargs, out, arguments)     # once op's storages are known

Decided from the call and from what was observed of its storages; ops.py knows single operators.

    rows, _ = torch.where(chosen == number)      # 441 rows this time, 462 another time
    part = expert(flat[rows])

A captured step shows one size. A plan that fits this size exactly would exceed its budget in the
next step, so the planner is given a size that is seldom exceeded: if n of m rows were chosen, it
assumes a binomial distribution and takes n + 2 sqrt(n (1 - n / m)). The number of rows is followed
from the op that chose them (`nonzero`, a mask) through everything made from it that has the same
number of rows. So are the rows that other ranks have sent to this one, where each has sent another
number (`all_to_all_single`), and those of a part of chosen rows, as one expert's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from reprise.torch.capture.captured import FORWARD, CapturedOp, CapturedStorage, Chosen
from reprise.torch.internals.ops import (
    PLAIN_TYPES,
    OpKind,
    chooses_rows,
    first_kind,
    is_collective,
    tensors_in,
)

DEVIATIONS = 2
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


def chosen_by(func: Any, args: tuple[Any, ...], out: Any) -> Chosen | None:
    """Returns how many rows an op has chosen from the content of its input; None if its output
    sizes follow from its input sizes."""
    outputs = tuple(tensors_in(out))
    if not chooses_rows(func, args) or not outputs or not outputs[0].dim():
        return None
    rows = outputs[0].shape[0]
    if func.__name__.startswith("bincount") and args[2:] and rows == args[2]:
        return None  # as many as the program has asked for
    if func.__name__.startswith("index"):
        possible = max(t.numel() for t in tensors_in(args[1]))
    else:
        possible = max((t.numel() for t in tensors_in(*args)), default=rows)
    return _spread(rows, possible)


class Exchange(NamedTuple):
    """Rows that ranks have sent to each other: as many as the data of each decides."""

    made: Tensor
    received_from: tuple[int, ...]  # rows, by rank
    sent_to: tuple[int, ...]

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...], out: Any) -> Exchange | None:
        """Returns what a call of the operator with this name has exchanged; None if it is another
        one, or if each rank has sent as much."""
        if name == "c10d.alltoall_base_.default":
            made, received, sent = args[0], args[3], args[4]
        elif name == "_c10d_functional.all_to_all_single.default":
            made, received, sent = out, args[1], args[2]
        else:
            return None
        if len(set(received)) < 2 and len(set(sent)) < 2:
            return None
        return cls(made, tuple(received), tuple(sent))

    @property
    def chosen(self) -> Chosen:
        """How many rows were received of those that there are, as if each rank had as many."""
        return _spread(sum(self.received_from), len(self.sent_to) * sum(self.sent_to))


def _spread(rows: int, possible: int) -> Chosen:
    spread = DEVIATIONS * math.sqrt(rows * max(0.0, 1 - rows / max(1, possible)))
    return Chosen(rows, min(max(possible, rows), rows + math.ceil(spread)))


def follow(
    sources: Iterable[tuple[Tensor, CapturedStorage | None]], tensor: Tensor
) -> Chosen | None:
    """Returns the choice that determines the size of a new tensor: that of a source, if a dimension
    of the tensor has that length, or of the rows that the source is a part of; otherwise None."""
    for source, storage in sources:
        if storage is None or storage.chosen is None:
            continue
        chosen = storage.chosen
        if chosen.rows in tensor.shape:
            return chosen
        part = source.shape[0] if source.dim() else 0
        if 0 < part < chosen.rows and part in tensor.shape and source.nbytes < storage.bytes:
            return Chosen(part, math.ceil(part * chosen.most / chosen.rows))
    return None
