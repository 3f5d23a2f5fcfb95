# SPDX-License-Identifier: Apache-2.0
"""What a case is: a model of a public library or a way to train, built from random weights.

    @case("timm/mixer")
    def mixer() -> Job: ...

    job = CASES["timm/mixer"]()
    loss = job.step(0)

A case builds everything from the generators that its caller has seeded, so that two processes that
build and train it compute the same bits. `Job.arm` is the module that a user would hand to
`reprise.auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

__all__ = [
    "CASES",
    "Job",
    "adamw",
    "batch",
    "case",
    "classes",
    "sgd",
    "supervised",
    "tokens",
]

CASES: dict[str, Callable[[], Job]] = {}


@dataclass
class Job:
    """One training job.

    step        runs training step n and returns its loss
    loop        in its place where a framework owns the loop: runs so many steps, calls what it is
                given before each, and returns the losses
    models      what is compared at the end: parameters and buffers of each
    optimizers  what is compared at the end: their state
    arm         the module given to `reprise.auto`; the first of `models` where it is None
    by_hand     containers whose children checkpointing by hand would wrap; found where empty
    """

    step: Callable[[int], Tensor] | None
    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    arm: nn.Module | None = None
    loop: Callable[[int, Callable[[], None]], list[Tensor]] | None = None
    by_hand: list[nn.Module] = field(default_factory=list)

    @property
    def armed(self) -> nn.Module:
        """The module that is given to `reprise.auto`."""
        return self.models[0] if self.arm is None else self.arm

    def run(self, steps: int, before: Callable[[], None]) -> list[Tensor]:
        """Trains; `before` is called when a step begins. Returns the losses."""
        if self.loop is not None:
            return self.loop(steps, before)
        assert self.step is not None
        losses = []
        for number in range(steps):
            before()
            losses.append(self.step(number))
        return losses


def case(name: str) -> Callable[[Callable[[], Job]], Callable[[], Job]]:
    """Registers a function that builds a job under a name, `library/model` or `style/way`."""

    def register(build: Callable[[], Job]) -> Callable[[], Job]:
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = build
        return build

    return register


def batch(number: int, *shape: int) -> Tensor:
    """The random input of step `number`, the same whatever else draws random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 + number))


def tokens(number: int, high: int, *shape: int) -> Tensor:
    """Random token ids below `high` for step `number`."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(5000 + number))


def classes(number: int, high: int, count: int) -> Tensor:
    """Random class labels below `high` for step `number`."""
    return tokens(1_000_000 + number, high, count)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with its defaults."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def supervised(
    model: nn.Module,
    loss_of: Callable[[nn.Module, int], Tensor],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    by_hand: Iterable[nn.Module] = (),
) -> Job:
    """The ordinary loop: zero_grad, forward, loss, backward, step."""
    model.train()
    own = optimizer(model)

    def step(number: int) -> Tensor:
        own.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        own.step()
        return loss.detach()

    return Job(step, [model], [own], by_hand=list(by_hand))
