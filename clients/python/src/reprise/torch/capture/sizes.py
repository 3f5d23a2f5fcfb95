# SPDX-License-Identifier: Apache-2.0
"""How large a storage may become whose size the data decides.

    rows, _ = torch.where(chosen == number)      # 441 rows this time, 462 another time
    part = expert(flat[rows])

A captured step shows one size. A plan that fits it exactly is over its budget in the next step, so
the planner is told a size that is seldom exceeded: with n rows chosen out of m, those of a
binomial distribution, n + 2 sqrt(n (1 - n / m)). Followed from the op that chose (`nonzero`, a
mask) through everything made of it that has that many rows too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from reprise.torch.capture.captured import CapturedStorage, Chosen
from reprise.torch.internals.ops import chooses_rows, tensors_in

__all__ = ["chosen_by", "follow"]

DEVIATIONS = 2


def chosen_by(func: Any, args: tuple[Any, ...], out: Any) -> Chosen | None:
    """What an op chose by what its input holds; None: its sizes follow from sizes."""
    outputs = tuple(tensors_in(out))
    if not chooses_rows(func, args) or not outputs or not outputs[0].dim():
        return None
    rows = outputs[0].shape[0]
    if func.__name__.startswith("index"):
        possible = max(t.numel() for t in tensors_in(args[1]))
    else:
        possible = max((t.numel() for t in tensors_in(*args)), default=rows)
    spread = DEVIATIONS * math.sqrt(rows * max(0.0, 1 - rows / max(1, possible)))
    return Chosen(rows, min(max(possible, rows), rows + math.ceil(spread)))


def follow(sources: Iterable[CapturedStorage], tensor: Tensor) -> Chosen | None:
    """The choice that the size of a new tensor comes from: one that an input has, if a dimension of
    it is that long."""
    for source in sources:
        if source.chosen is not None and source.chosen.rows in tensor.shape:
            return source.chosen
    return None
