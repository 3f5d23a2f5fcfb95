# SPDX-License-Identifier: Apache-2.0
"""Models that make distributions of torch are planned from their shapes: what these check of their
arguments ends a program where it is not so, and their tensors are outputs of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.nn import functional as F

from reprise.torch.estimation.fake_meter import FakeTensors


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


class Body(nn.Module):
    """A body, and a head for each number that a distribution takes."""

    def __init__(self, make: Callable[..., Any], *widths: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
        self.heads = nn.ModuleList(nn.Linear(64, width) for width in widths)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return self.make(*(head(hidden) for head in self.heads))


def mixture(logits: Tensor, mean: Tensor, scale: Tensor) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(logits=logits), Normal(mean, F.softplus(scale) + 0.01))


def gaussian(mean: Tensor, scale: Tensor) -> Independent:
    return Independent(Normal(mean, scale.clamp(-5, 2).exp()), 1)


def actor(logits: Tensor, value: Tensor) -> tuple[Categorical, Tensor]:
    return Categorical(logits=logits), value


def of_actor(out: tuple[Categorical, Tensor]) -> Tensor:
    chosen, value = out
    gain = chosen.log_prob(chosen.sample()) * value.detach().squeeze(1)
    return value.square().mean() - gain.mean() - 0.01 * chosen.entropy().mean()


CASES: dict[str, tuple[Any, tuple[int, ...], Callable[[Any], Tensor]]] = {
    "mixture": (mixture, (8, 8, 8), lambda out: -out.log_prob(torch.randn(512)).mean()),
    "gaussian": (gaussian, (6, 6), lambda out: out.log_prob(out.rsample()).mean()),
    "actor-critic": (actor, (6, 1), of_actor),
}


def train(case: str, agent: LocalAgent | None) -> tuple[list[float], Any]:
    make, widths, loss_of = CASES[case]
    torch.manual_seed(0)
    model = Body(make, *widths)
    session = None if agent is None else arm(model, agent, first="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = loss_of(model(torch.randn(512, 64)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, session


@pytest.mark.parametrize("case", CASES)
def test_each_step_is_planned_and_its_bits_are_those_of_plain_training(case: str) -> None:
    plain, _ = train(case, None)

    losses, session = train(case, LocalAgent())

    assert losses == plain
    verdict = session.job.record.verdict()
    assert verdict.planned_steps == 8
    assert verdict.unplanned_steps == verdict.mismatches == verdict.over_budget_steps == 0


def test_only_what_ends_a_program_is_taken_for_true() -> None:
    with FakeTensors():
        x = torch.empty(4)
        assert bool(torch._is_all_true(x > 0))
        with pytest.raises(Exception, match="_local_scalar_dense"):
            bool((x > 0).all())
