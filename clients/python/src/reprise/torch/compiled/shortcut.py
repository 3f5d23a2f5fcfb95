# SPDX-License-Identifier: Apache-2.0
"""Shortcuts that recompute two ops in a tenth of their time: batch norm and dropout masks.

    if has_shortcut(func, args):         # before a call
        made = shortcut(func, args, out)     # after the call
        made(args)                           # its result again, bit for bit

A batch norm in training spends its time on the statistics of its input, which the first call has
already computed. A mask is drawn number by number, and takes one bit per element to keep.
compiled/shortcut.h says how it is done, and why the bits are the same. Without the native engine
the calls themselves are replayed. There are shortcuts on the CPU only: on other devices random
numbers are cheap, and batch norm is another kernel.

The statistics are those that autograd saves for the same op. A step graph that relies on a shortcut
says that they stay.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from reprise.torch.compiled import fast
from reprise.torch.internals.ops import overloads, trains_at

_MASKS = overloads("aten.bernoulli_.float")


class _Norm:
    """A batch norm whose statistics are known."""

    __slots__ = ("_deviation", "_fused", "_mean")

    bytes = 0  # in addition to what autograd keeps

    def __init__(self, fused: bool, mean: Tensor, deviation: Tensor) -> None:
        self._fused, self._mean, self._deviation = fused, mean.detach(), deviation.detach()

    def __call__(self, args: Any) -> Any:
        mean, deviation = self._mean, self._deviation
        out = fast.library().normalized(*args[:3], mean, deviation, self._fused)
        return out, mean, deviation


class _Mask:
    """A dropout mask, kept as one bit per element."""

    __slots__ = ("_bits", "bytes")

    def __init__(self, bits: Tensor) -> None:
        self._bits = bits
        self.bytes = bits.untyped_storage().nbytes()

    def __call__(self, args: Any) -> Any:
        fast.library().spread_bits(self._bits, args[0])
        return args[0]


Shortcut = _Norm | _Mask


def has_shortcut(func: Any, args: Any) -> bool:
    """Returns whether a call will have a shortcut once it has run."""
    at = trains_at(func)
    if at < 0 and func not in _MASKS:
        return False
    library = fast.library()
    if library is None or type(args[0]) is not Tensor:
        return False
    if at < 0:
        return bool(library.is_mask(args[0]))
    if not args[at] or not library.normalizes(*args[:3]):
        return False
    return _fused(args[0].dtype) is not None


def shortcut(func: Any, args: Any, out: Any) -> Shortcut:
    """Returns the shortcut of a call that has run. `has_shortcut` must be true for it."""
    if func in _MASKS:
        return _Mask(fast.library().bits_of(args[0]))
    fused = _fused(args[0].dtype)
    assert fused is not None
    return _Norm(fused, out[1], out[2])


def prepare() -> None:
    """Tells fast.cc which ops have shortcuts."""
    library = fast.library()
    for dtype in (torch.float32, torch.float64):
        fused = None if library is None else _fused(dtype)
        if fused is not None:
            library.round_once(dtype is torch.float64, fused)


@cache
def _fused(dtype: torch.dtype) -> bool | None:
    """Returns whether the kernel of this torch rounds once or twice where the shortcut of batch
    norm computes in advance; None if neither gives the bits of the kernel."""
    # This may be called while a step is captured, even one of fake tensors.
    with _disable_current_modes(), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3, 512, 5, 3, dtype=dtype, generator=generator, device="cpu")
        weight, bias, shift, scale = torch.randn(
            4, 512, dtype=dtype, generator=generator, device="cpu"
        )
        x = x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
        layouts = (x, x.contiguous(memory_format=torch.channels_last))
        return next((fused for fused in (True, False) if _same(fused, layouts, weight, bias)), None)


def _same(fused: bool, layouts: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> bool:
    """Returns whether the shortcut computes the bits of the kernel with this rounding, in these
    layouts."""
    for x in layouts:
        made, mean, deviation = torch.ops.aten.native_batch_norm.default(
            x, weight, bias, None, None, True, 0.1, 1e-5
        )
        again = fast.library().normalized(x, weight, bias, mean, deviation, fused)
        if not torch.equal(made, again):
            return False
    return True
