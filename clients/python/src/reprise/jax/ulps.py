# SPDX-License-Identifier: Apache-2.0
"""How far two results are apart: bits that differ, counted in steps of the last place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True, slots=True)
class Difference:
    """Two lists of arrays compared, bit for bit."""

    arrays: int
    differing: int
    # The largest distance of two floating point numbers, in steps between neighbours.
    most_ulps: int
    # The largest difference, as a share of the largest number of its array.
    most_relative: float

    @property
    def sentence(self) -> str:
        """The comparison in one sentence."""
        if not self.differing:
            return f"All {self.arrays} results are equal bit for bit."
        return (
            f"{self.differing} of {self.arrays} results differ in some bit: by at most "
            f"{self.most_relative:.1e} of the largest number of the result, {self.most_ulps} ulp "
            "at the worst number."
        )


def difference(plain: Sequence[Any], planned: Sequence[Any]) -> Difference:
    """Compares results of the same program."""
    differing, ulps, relative = 0, 0, 0.0
    for one, other in zip(plain, planned, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        if a.tobytes() == b.tobytes():
            continue
        differing += 1
        if a.dtype.kind in "iubO" or a.dtype.itemsize not in _SIGNED or not a.size:
            continue
        x, y = _steps(a), _steps(b)
        ulps = max(ulps, _furthest(x, y))
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        largest = float(np.max(np.abs(wide_a))) or 1.0
        relative = max(relative, float(np.max(np.abs(wide_a - wide_b))) / largest)
    return Difference(len(plain), differing, ulps, relative)


def _steps(array: Any) -> Any:
    """Returns floating point numbers as integers in which neighbours differ by one."""
    bits = array.view(_SIGNED[array.dtype.itemsize]).astype(np.int64)
    lowest = -(1 << (8 * array.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits, bits)


def _furthest(x: Any, y: Any) -> int:
    at = int(np.argmax(np.abs(x.astype(np.float64) - y.astype(np.float64))))
    return abs(int(x.flat[at]) - int(y.flat[at]))
