# SPDX-License-Identifier: Apache-2.0
"""Training scripts as people write them, each around one habit that is easy to get wrong.

    for shown in HABITS["gan"](arm):      # builds, calls arm(model) as a script would, trains
        print(differing(before, evidence(shown)))

A habit is a generator. It yields after every step: what it printed (numbers), and its modules, of
which every parameter, gradient and buffer is looked at, with the state of the generators. Run
plainly, `arm` gives back the model as it is. What the forward does is in `habits_forward.py`, what
the loop does in `habits_loop.py`, models that change and steps that fail in `habits_change.py`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "HABITS",
    "Arm",
    "Habit",
    "Shown",
    "deep",
    "differing",
    "evidence",
    "habit",
    "train",
]

Shown = tuple[list[float | Tensor], list[nn.Module]]
Arm = Callable[[Any], Any]
Habit = Callable[[Arm], Iterator[Shown]]

STEPS = 20
W = 24  # of every layer
HABITS: dict[str, Habit] = {}


def habit(make: Habit) -> Habit:
    """Registers a habit."""
    HABITS[make.__name__] = make
    return make


def deep(width: int = W, depth: int = 3, dropout: float = 0.2) -> nn.Sequential:
    """Returns layers that save more tensors than they need."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.GELU()]
    return nn.Sequential(*layers)


def some(*shape: int) -> Tensor:
    """Returns a batch."""
    return torch.randn(*shape)


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    """Returns an optimizer with momentum, so that a step depends on earlier ones."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    steps: int = STEPS,
    lr: float = 0.05,
) -> Iterator[Shown]:
    """Trains as every tutorial does."""
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        yield [loss.detach()], [model]


def evidence(shown: Shown) -> dict[str, str]:
    """Returns everything that must not change by a bit, by name."""
    said, modules = shown
    found = {f"number {n}": _bits(value) for n, value in enumerate(said)}
    for at, module in enumerate(modules):
        for name, tensor in module.named_parameters():
            found[f"{at}.{name}"] = _bits(tensor.detach())
            found[f"{at}.{name}.grad"] = "none" if tensor.grad is None else _bits(tensor.grad)
        for name, tensor in module.named_buffers():
            found[f"{at}.{name}"] = _bits(tensor)
    found["torch's generator"] = _bits(torch.get_rng_state())
    found["python's generator"] = str(hash(random.getstate()))
    return found


def differing(left: dict[str, str], right: dict[str, str]) -> list[str]:
    """Returns the names of what differs, in order."""
    return [n for n in {**left, **right} if left.get(n) != right.get(n)]


def _bits(value: float | Tensor) -> str:
    if not isinstance(value, Tensor):
        return float(value).hex()
    value = value.detach()
    if value.is_sparse:
        value = value.coalesce().to_dense()
    raw = value.contiguous().flatten()
    raw = torch.view_as_real(raw).flatten() if raw.is_complex() else raw
    data = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
    return f"{tuple(value.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
