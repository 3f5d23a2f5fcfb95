# SPDX-License-Identifier: Apache-2.0
"""Networks for tests: random ones, and one for each trait that is easy to get wrong."""

from __future__ import annotations

import random
from typing import Any

import torch
from jobs import Job, sum_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class RandomNet(nn.Module):
    """A random DAG over (batch, WIDTH) values: views, in-place ops, dropout, batch norm, shared
    weights, ops with several inputs and outputs."""

    def __init__(self, seed: int, length: int = 24) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(length))
        self.layer_norm = nn.LayerNorm(WIDTH)
        self.convolution = nn.Conv1d(1, 2, 3, padding=1)
        self.steps = [
            (rng.choice(_STEPS), rng.random(), rng.random(), rng.randrange(3))
            for _ in range(length)
        ]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = [self.linears[0](x)]
        for number, (step, first, second, which) in enumerate(self.steps):
            # Mostly the newest value, so that chains get long.
            a = values[-1 - int(first**2 * len(values))]
            b = values[-1 - int(second * len(values))]
            values.append(step(self, a, b, which, number))
        return values[-1], values[-2]


def _in_place_chain(net: RandomNet, a: Tensor, b: Tensor, which: int, number: int) -> Tensor:
    return F.relu(net.norms[number](a), inplace=True)


def _writes_a_view(net: RandomNet, a: Tensor, b: Tensor, which: int, number: int) -> Tensor:
    c = a * 0.5
    c[:, :4].mul_(1.5)
    return c.add_(b)


def _outputs(net: RandomNet, a: Tensor, b: Tensor, which: int, number: int) -> Tensor:
    left, right = a.chunk(2, dim=1)
    return torch.cat([right.sigmoid(), left * right, b[:, : WIDTH - left.shape[1] - 4]], dim=1)


def _attention(net: RandomNet, a: Tensor, b: Tensor, which: int, number: int) -> Tensor:
    q, k = a.view(a.shape[0], 2, 4).transpose(1, 2), b.view(b.shape[0], 2, 4)
    weights = F.dropout(torch.softmax(q @ k, dim=-1), 0.3)
    return (weights @ k.transpose(1, 2)).transpose(1, 2).reshape(a.shape)


_STEPS: list[Any] = [
    _in_place_chain,
    _in_place_chain,
    _writes_a_view,
    _outputs,
    _attention,
    lambda net, a, b, which, number: F.gelu(net.linears[which](a)),
    lambda net, a, b, which, number: net.linears[which](a).tanh_(),
    lambda net, a, b, which, number: F.dropout(a, 0.4) + b,
    lambda net, a, b, which, number: net.layer_norm(a * b),
    lambda net, a, b, which, number: a.exp().clamp(max=2.0) - b,
    lambda net, a, b, which, number: a.t().contiguous().t() * b.mean(0, keepdim=True),
    lambda net, a, b, which, number: net.convolution(a.unsqueeze(1)).sum(1),
    lambda net, a, b, which, number: torch.where(a > 0, a, b) * 0.9,
    lambda net, a, b, which, number: (a / (b.abs() + 1.0)).neg(),
]


class ConvNet(nn.Module):
    """Convolution, batch norm and in-place ReLU, twice in a residual block."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2 * blocks))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i in range(0, len(self.convs), 2):
            y = self.convs[i](self.relu(self.norms[i](x)))
            x = x + self.convs[i + 1](self.relu(self.norms[i + 1](y)))
        return x.mean(dim=(2, 3))


class Leaky(nn.Module):
    """Keeps a value that a recomputed op reads but autograd does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.kept = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.kept = y.detach()
        return (y + 1.0).sin().exp()


class Chain(nn.Module):
    """A chain of sines."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 1.5))
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for _ in range(self.length):
            x = x.sin()
        return x * self.scale


class Checkpointed(nn.Module):
    """A model that checkpoints a part of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def _inner(self, x: Tensor) -> Tensor:
        return F.dropout(self.second(x).relu(), 0.2).exp()

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x)).sin()
        x = checkpoint(self._inner, x, use_reentrant=False)
        return self.first(x).tanh()


class Square(torch.autograd.Function):
    """Saves its input through save_for_backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(self.linear(Square.apply(self.linear(x).sin())).cos()).exp()


def job(model: nn.Module, *shape: int, loss: Any = sum_of) -> Job:
    """Returns a job on random input, with momentum so that there is optimizer state."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Job(model, (torch.randn(*shape or (6, WIDTH)),), loss, optimizer)


class TwoFaced(nn.Module):
    """A model whose step changes for good."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.changed = False

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).sin()
        return y.exp() if self.changed else y.cos().tanh()
