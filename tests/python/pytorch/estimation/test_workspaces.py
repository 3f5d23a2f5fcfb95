# SPDX-License-Identifier: Apache-2.0
"""What ops take inside themselves: as assumed for fake tensors, and as measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jobs import start_meter
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.torch.estimation.workspaces import workspace_bytes
from reprise.torch.internals.ops import tensors_in

IMAGE, WEIGHT = (4, 32, 32, 32), (64, 32, 3, 3)
# By how much of the largest tensor an assumption may be wrong: the rules were made with AVX-512.
OFF = 0.22 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 0.45


class Measured(TorchDispatchMode):
    """Compares the bytes that each op takes with those that are assumed."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = start_meter()
        self.found: list[tuple[str, int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        meter = self.meter
        meter.reset_peak()
        before = meter.live()
        out = func(*args, **(kwargs or {}))
        took = meter.peak() - before
        made = {t.untyped_storage()._cdata: t.nbytes for t in tensors_in(out)}
        known = {t.untyped_storage()._cdata for t in tensors_in(args)}
        new = sum(size for key, size in made.items() if key not in known)
        largest = max((t.nbytes for t in tensors_in(args, out)), default=0)
        self.found.append((str(func), took - new, workspace_bytes(func, args, out), largest))
        return out


def dense(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def target() -> Tensor:
    return torch.rand(256, 256)


CASES: dict[str, Callable[[], Tensor]] = {
    "mse": lambda: F.mse_loss(dense(256, 256), target()),
    "smooth l1": lambda: F.smooth_l1_loss(dense(256, 256), target()),
    "huber": lambda: F.huber_loss(dense(256, 256), target()),
    "bce with logits": lambda: F.binary_cross_entropy_with_logits(dense(256, 256), target()),
    "cross entropy": lambda: F.cross_entropy(dense(256, 256), torch.zeros(256, dtype=torch.long)),
    "cross entropy of pixels": lambda: F.cross_entropy(
        dense(4, 16, 32, 32), torch.zeros(4, 32, 32, dtype=torch.long)
    ),
    "cross entropy of a sequence": lambda: F.cross_entropy(
        dense(4, 64, 128).transpose(1, 2), torch.zeros(4, 64, dtype=torch.long)
    ),
    "logsumexp": lambda: dense(256, 256).logsumexp(-1),
    "convolution": lambda: F.conv2d(dense(*IMAGE), dense(*WEIGHT), padding=1),
    "convolution, stride 2": lambda: F.conv2d(dense(*IMAGE), dense(*WEIGHT), stride=2),
    "convolution, channels of half a block": lambda: F.conv2d(
        dense(4, 24, 24, 24), dense(12, 24, 3, 3), padding=1
    ),
    "convolution of an image": lambda: F.conv2d(
        torch.randn(4, 3, 32, 32), dense(12, 3, 3, 3), padding=1
    ),
    "convolution, stride 2, odd channels": lambda: F.conv2d(
        dense(4, 20, 32, 32), dense(40, 20, 3, 3), stride=2, padding=1
    ),
    "convolution, many of one pixel": lambda: F.conv2d(dense(18, 24, 8, 8), dense(40, 24, 1, 1)),
    "convolution, transposed, stride 1": lambda: F.conv_transpose2d(
        dense(3, 20, 16, 16), dense(20, 40, 3, 3), padding=1
    ),
    "convolution of each channel": lambda: F.conv2d(
        dense(8, 24, 16, 16), dense(24, 1, 3, 3), padding=1, groups=24
    ),
    "convolution, 1x1": lambda: F.conv2d(dense(*IMAGE), dense(64, 32, 1, 1)),
    "convolution, 1d": lambda: F.conv1d(dense(4, 32, 1024), dense(64, 32, 3)),
    "convolution, transposed": lambda: F.conv_transpose2d(
        dense(*IMAGE), dense(32, 32, 2, 2), stride=2
    ),
    "convolution, channels last": lambda: F.conv2d(
        dense(*IMAGE).to(memory_format=torch.channels_last), dense(*WEIGHT), padding=1
    ),
    "convolution, bfloat16": lambda: F.conv2d(
        dense(*IMAGE).bfloat16(), dense(*WEIGHT).bfloat16(), padding=1
    ),
    "convolution, float16": lambda: F.conv2d(
        dense(*IMAGE).half(), dense(*WEIGHT).half(), padding=1
    ),
    "batch norm": lambda: F.batch_norm(
        dense(*IMAGE), torch.zeros(32), torch.ones(32), dense(32), dense(32), training=True
    ),
    "group norm": lambda: F.group_norm(dense(*IMAGE), 8, dense(32), dense(32)),
    "layer norm": lambda: F.layer_norm(dense(256, 256), (256,), dense(256), dense(256)),
    "attention": lambda: F.scaled_dot_product_attention(*(dense(2, 4, 256, 64) for _ in "qkv")),
    "attention, long": lambda: F.scaled_dot_product_attention(
        *(dense(1, 2, 1024, 64) for _ in "qkv"), is_causal=True
    ),
    "gelu": lambda: F.gelu(dense(256, 256)),
    "softmax": lambda: dense(256, 256).softmax(-1),
    "dropout": lambda: F.dropout(dense(256, 256), 0.5),
    "linear, bfloat16": lambda: F.linear(
        dense(4, 64, 256).bfloat16(), dense(128, 256).bfloat16(), dense(128).bfloat16()
    ),
    "linear, bfloat16, many rows": lambda: F.linear(
        dense(1024, 128).bfloat16(), dense(512, 128).bfloat16()
    ),
    "linear, bfloat16, wide": lambda: F.linear(
        dense(512, 384).bfloat16(), dense(384, 384).bfloat16()
    ),
    "linear, float16": lambda: F.linear(dense(64, 96).half(), dense(64, 96).half()),
    "linear": lambda: F.linear(dense(4, 64, 256), dense(128, 256), dense(128)),
}


@pytest.mark.parametrize("case", CASES)
def test_ops_take_what_is_assumed_of_them(case: str) -> None:
    if "float16" in case.split() and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this processor has no instructions for float16")
    out = CASES[case]()
    mode = Measured()

    with mode:
        out = CASES[case]()
        out.backward(torch.randn_like(out))

    for name, took, assumed, largest in mode.found:
        shares = name, took, assumed, largest
        assert took - assumed <= OFF * largest, shares
        assert assumed - took <= OFF * largest or "1x1" in case, shares
