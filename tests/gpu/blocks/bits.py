# SPDX-License-Identifier: Apache-2.0
"""Which operators give other bits when they run again on the same bytes, each call of forward and
backward by itself, beside the list that Reprise goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from runner import Block, Here, Row
from sizes import sizes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TIMES = 5


class Again(TorchDispatchMode):
    """Runs every op `TIMES` times on the same bytes, and counts those that differ."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.differ: Counter[str] = Counter()
        self.listed: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from reprise.torch.internals.nondeterministic import adds_in_any_order

        kwargs = kwargs or {}
        if func.is_view or "empty" in str(func) or func._schema.is_mutable:
            return func(*args, **kwargs)
        random = torch.cuda.get_rng_state()
        first = func(*args, **kwargs)
        name = str(func).removeprefix("aten.")
        self.calls[name] += 1
        if adds_in_any_order(func, args, kwargs):
            self.listed.add(name)
        after = torch.cuda.get_rng_state()
        for _ in range(TIMES - 1):
            torch.cuda.set_rng_state(random)
            for at in unequal(first, func(*args, **kwargs)):
                # What a kernel leaves unwritten holds what was there.
                if func._schema.returns[at].name != "unused":
                    self.differ[f"{name}[{at}]"] += 1
        torch.cuda.set_rng_state(after)
        return first


def unequal(one: Any, other: Any) -> list[int]:
    """Which tensors of two results, by number, have not the same bytes."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return [
        number
        for number, (a, b) in enumerate(pairs)
        if isinstance(a, Tensor) and a.numel() > 0 and not torch.equal(bytes_of(a), bytes_of(b))
    ]


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


Case = tuple[str, Callable[[], Any]]


def cases(n: int) -> Iterator[Case]:
    """Some thirty operators, each with its backward; about `n` elements go into each."""

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, device="cuda").to(dtype).requires_grad_()

    side = max(16, round((n / 16) ** 0.5) // 16 * 16)
    image = max(8, round((n / 64) ** 0.5) // 8 * 8)
    length = max(32, n // (4 * 64 * 8) // 32 * 32)
    # With few rows for many sums, as where atomics meet.
    index = torch.randint(0, 50, (side,), device="cuda")

    def attention(backend: SDPBackend) -> Callable[[], Tensor]:
        def call() -> Tensor:
            q, k, v = (random(4, 8, length, 64, dtype=torch.bfloat16) for _ in range(3))
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return call

    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        yield f"sdpa {name.lower()}", attention(getattr(SDPBackend, name))

    def of(module: nn.Module, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
        module.cuda()
        return lambda: module(make())

    def images(channels: int = 16) -> Tensor:
        return random(max(1, n // (channels * image * image)), channels, image, image)

    for channels, kernel, stride, groups in (
        *((16, 3, 1, 1), (64, 1, 1, 1)),
        *((32, 3, 2, 1), (32, 3, 1, 32)),
    ):
        conv = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=groups)
        name = f"conv {channels}x{kernel} stride {stride} groups {groups}"
        yield name, of(conv, lambda channels=channels: images(channels))
    yield "conv transposed", of(nn.ConvTranspose2d(16, 16, 4, 2, 1), images)
    yield "batch norm", of(nn.BatchNorm2d(16), images)
    yield "group norm", of(nn.GroupNorm(4, 16), images)
    yield "layer norm", of(nn.LayerNorm(256), lambda: random(max(1, n // 256), 256))
    yield "rms norm", lambda: F.rms_norm(random(max(1, n // 256), 256), (256,))
    half = nn.Linear(side, side).bfloat16()
    yield "linear bf16", of(half, lambda: random(side, side, dtype=torch.bfloat16))
    yield "linear fp32", of(nn.Linear(side, side), lambda: random(side, side))
    yield "bmm", lambda: random(16, side // 4, side // 4) @ random(16, side // 4, side // 4)
    yield "embedding", of(nn.Embedding(50, 64), lambda: index)
    yield "embedding bag", of(nn.EmbeddingBag(50, 64), lambda: index.view(-1, 4))
    yield "cross entropy", lambda: F.cross_entropy(random(side, 1000), index)
    labels = torch.randint(0, 10, (4, image, image), device="cuda")
    yield "cross entropy 2d", lambda: F.cross_entropy(random(4, 10, image, image), labels)
    yield "softmax", lambda: random(side, side).softmax(-1)
    yield "log softmax bf16", lambda: random(side, side, dtype=torch.bfloat16).log_softmax(-1)
    yield "gelu", lambda: F.gelu(random(side, side))
    yield "silu", lambda: F.silu(random(side, side))
    yield "dropout", lambda: F.dropout(random(side, side), 0.1)
    yield (
        "scatter add",
        lambda: random(50, side).scatter_add(
            0, index.expand(side, side).t() % 50, random(side, side)
        ),
    )
    yield "index add", lambda: random(50, side).index_add(0, index, random(side, side))
    yield "index", lambda: random(50, side)[index]
    yield "gather", lambda: random(50, side).gather(0, index.expand(side, side).t() % 50)
    yield "interpolate", lambda: F.interpolate(images(), scale_factor=2.0, mode="bilinear")
    yield "interpolate nearest", lambda: F.interpolate(images(), scale_factor=2.0)
    yield "max pool", lambda: F.max_pool2d(images(), 3, 2, 1)
    yield "average pool", lambda: F.adaptive_avg_pool2d(images(), 4)
    yield "reflection pad", lambda: F.pad(images(), (1, 1, 1, 1), mode="reflect")
    yield "cumsum", lambda: random(side, side).cumsum(0)
    yield "sum", lambda: random(n).sum()
    yield "sum over rows", lambda: random(side * 4, side).sum(0)
    yield "std", lambda: random(side, side).std(1)


def again(here: Here, benchmark: bool = False) -> None:
    """Each op of every case, forward and backward, several times."""
    torch.backends.cudnn.benchmark = benchmark
    mode, refused = Again(), {}
    for number, (name, call) in enumerate(cases(sizes(here.rehearsal).ops_elements)):
        torch.manual_seed(number)
        try:
            with mode:
                out = call()
                out.float().square().mean().backward()
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}".split("\n")[0][:100]
    differ = {name.split("[")[0] for name in mode.differ}  # by op: the list knows no outputs
    here.say(
        ops=len(mode.calls),
        calls=sum(mode.calls.values()),
        differ={
            name: f"{n} of {mode.calls[name] * (TIMES - 1)}" for name, n in mode.differ.items()
        },
        not_in_the_list=sorted(differ - mode.listed),
        in_the_list_and_equal=sorted(mode.listed - differ),
        did_not_run=refused,
    )


BITS = Block(
    "bits",
    "Which operators give other bits when they run again, and does Reprise's list know them?",
    25.0,
    (Row("usual", again, 25), Row("cudnn.benchmark", lambda here: again(here, True), 25)),
)
