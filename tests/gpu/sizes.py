# SPDX-License-Identifier: Apache-2.0
"""How large the measured jobs are: on a GPU, and in a rehearsal on the fake device, whose host
computes. There they are about a hundredth or less, in bytes and in work, with as many layers as on
the GPU, as the planner's and the host's time comes from those."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Gpt:
    """A GPT-2: its shape, and the batch."""

    layers: int
    width: int
    heads: int
    context: int
    batch: int
    vocabulary: int = 50304


@dataclass(frozen=True)
class Sizes:
    gpt: Gpt  # GPT-2 small, 32 x 1024 tokens
    fits: Gpt  # the same where memory is short
    small: Gpt  # so small that launching is all it does
    compiled: Gpt
    script: Gpt
    resnet_batch: int  # of CIFAR's images
    resnet_blocks: tuple[int, ...]  # the original figure, and a usual depth
    half_blocks: int  # of the bfloat16 network
    steps: int  # of a training job; the plan is there after about six
    ops_elements: int  # of an operator's input
    copy_bytes: int
    matmul: int


FULL = Sizes(
    gpt=Gpt(12, 768, 12, 1024, 32),
    fits=Gpt(12, 768, 12, 1024, 32),
    small=Gpt(6, 128, 4, 128, 8, 256),
    compiled=Gpt(6, 768, 12, 1024, 16),
    script=Gpt(12, 768, 12, 512, 16),
    resnet_batch=1280,
    resnet_blocks=(198, 18),
    half_blocks=99,
    steps=20,
    ops_elements=1 << 22,
    copy_bytes=4 << 30,
    matmul=8192,
)
REHEARSAL = replace(
    FULL,
    gpt=Gpt(12, 96, 4, 128, 8, 512),
    # A little larger: what fits in 50 MiB is decided by segments of 20 MiB.
    fits=Gpt(12, 96, 4, 128, 24, 512),
    small=Gpt(6, 32, 4, 32, 4, 256),
    compiled=Gpt(6, 64, 4, 64, 16, 256),
    script=Gpt(4, 64, 4, 64, 16, 512),
    resnet_batch=4,
    resnet_blocks=(198, 18),
    half_blocks=9,
    ops_elements=1 << 14,
    copy_bytes=16 << 20,
    matmul=256,
)


def sizes(rehearsal: bool) -> Sizes:
    return REHEARSAL if rehearsal else FULL
