# SPDX-License-Identifier: Apache-2.0
"""How large a storage may become if the data decides its size.

    rows, _ = torch.where(chosen == number)      # 441 rows this time, 462 another time
    part = expert(flat[rows])

A captured step shows one size. A plan that fits this size exactly would exceed its budget in the
next step, so the planner is given a size that is seldom exceeded: if n of m rows were chosen, it
assumes a binomial distribution and takes n + 2 sqrt(n (1 - n / m)). The number of rows is followed
from the op that chose them (`nonzero`, a mask) through everything made from it that has the same
number of rows.
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
    """Returns how many rows an op has chosen from the content of its input; None if its output
    sizes follow from its input sizes."""
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
    """Returns the choice that determines the size of a new tensor: that of a source, if a dimension
    of the tensor has that length; otherwise None."""
    for source in sources:
        if source.chosen is not None and source.chosen.rows in tensor.shape:
            return source.chosen
    return None
