# SPDX-License-Identifier: Apache-2.0
"""Models that ask what is in their masks and positions are planned from the shapes and small
integers of the first batch: the plan is of the way that they go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from torch import Tensor, nn

from reprise.base.errors import RepriseError
from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.estimation.sketch import sketched

pytestmark = pytest.mark.usefixtures("removed")

ROWS, WIDTH = 64, 32


def hides(x: Tensor, mask: Tensor) -> bool:
    return not bool(torch.all(mask == 1))


def is_packed(x: Tensor, mask: Tensor) -> bool:
    positions = torch.arange(x.shape[0], device=x.device)[None]
    jumps = torch.diff(positions, prepend=positions[:, :1] - 1) != 1
    return bool((jumps.cumsum(-1)[:, -1] != 0).all())


def has_row(x: Tensor, mask: Tensor) -> bool:
    mine = torch.zeros(4, dtype=torch.int64)
    mine[1:3] += 2
    return torch.equal(mine, torch.tensor([0, 2, 2, 0])) and mine.sum().item() == 4


def longest(x: Tensor, mask: Tensor) -> bool:
    mask.clamp_(max=1)
    return int(mask.sum(-1).max()) > ROWS // 2


def keeps_its_layers(x: Tensor, mask: Tensor) -> bool:
    return bool(torch.rand([]) >= 0.0) and not torch.rand([]) > 1


def has_a_mask_of_its_own(x: Tensor, mask: Tensor) -> bool:
    own = torch.ones(2, x.shape[0])[:, None].to(torch.bool)
    return bool(own.all())


QUESTIONS: list[Callable[[Tensor, Tensor], bool]] = [
    hides,
    is_packed,
    has_row,
    longest,
    keeps_its_layers,
    has_a_mask_of_its_own,
]


class Asks(nn.Module):
    """Goes one of two ways in each of its layers."""

    def __init__(self, question: Callable[[Tensor, Tensor], bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.question = question

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        takes = self.question(x, mask)
        for layer in self.layers:
            x = layer(x).tanh() if takes else layer(x).sigmoid().sin()
        return x


def train(question: Any, full: bool, agent: LocalAgent | None) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model = Asks(question)
    session = None if agent is None else arm(model, agent, first="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        mask = torch.ones(2, ROWS, dtype=torch.int64)
        mask[:, ROWS // 4 :] *= full
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH), mask).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, session


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("question", QUESTIONS)
def test_each_step_is_planned_as_it_goes(question: Any, full: bool) -> None:
    plain, _ = train(question, full, None)

    losses, session = train(question, full, LocalAgent())

    assert losses == plain
    verdict = session.job.record.verdict()
    assert verdict.planned_steps == 8
    assert verdict.unplanned_steps == verdict.mismatches == 0


def of_the_batch(x: Tensor, mask: Tensor) -> bool:
    return bool((x > 0).all())


def of_computed_numbers(x: Tensor, mask: Tensor) -> bool:
    return bool((torch.ones(4) / 3 == 1 / 3).all())


def of_a_probability(x: Tensor, mask: Tensor) -> bool:
    return bool(torch.rand([]) < 0.1)


def of_random_numbers(x: Tensor, mask: Tensor) -> bool:
    return bool((torch.randint(2, (4,)) == 1).all())


def of_memory(x: Tensor, mask: Tensor) -> bool:
    return bool((torch.empty(4, dtype=torch.int64) == 1).all())


def of_what_was_written(x: Tensor, mask: Tensor) -> bool:
    mask[0] = (x[:, 0] > 0).long()
    return bool((mask == 1).all())


def of_an_output_that_was_given(x: Tensor, mask: Tensor) -> bool:
    torch.eq((x[:, 0] > 0).long(), 1, out=(own := torch.ones(ROWS, dtype=torch.bool)))
    return bool(own.all())


def of_random_numbers_that_were_changed(x: Tensor, mask: Tensor) -> bool:
    return bool(torch.rand([]).mul_(10) > 1)


@pytest.mark.parametrize(
    "question",
    [
        of_the_batch,
        of_an_output_that_was_given,
        of_random_numbers_that_were_changed,
        of_computed_numbers,
        of_a_probability,
        of_random_numbers,
        of_memory,
        of_what_was_written,
    ],
)
def test_what_is_not_known_is_not_guessed(question: Any) -> None:
    mask = torch.ones(2, ROWS, dtype=torch.int64)

    with pytest.raises(RepriseError, match="shapes alone do not determine the step"):
        sketched(Asks(question), (torch.randn(ROWS, WIDTH), mask), {}, 0)


def test_the_programs_own_tensors_stay_as_they_are() -> None:
    mask = torch.full((2, ROWS), 3)

    sketched(Asks(longest), (torch.randn(ROWS, WIDTH), mask), {}, 0)

    assert bool((mask == 3).all())


def test_a_library_that_goes_another_way_with_fake_tensors_is_not_told_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library: Any = ModuleType("transformers.utils.import_utils")
    library.is_fake_tensor = lambda x: isinstance(x, torch._subclasses.FakeTensor)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    told = []

    def question(x: Tensor, mask: Tensor) -> bool:
        told.append(library.is_fake_tensor(x))
        return True

    sketched(Asks(question), (torch.randn(ROWS, WIDTH), torch.ones(1)), {}, 0)

    assert told == [False]
    with FakeTensors():
        assert library.is_fake_tensor(torch.ones(1))
