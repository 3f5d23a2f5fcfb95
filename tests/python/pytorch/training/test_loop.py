# SPDX-License-Identifier: Apache-2.0
"""What the training loops of eager and of compiled models share, with a loop that does nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from reprise.agent.agent import Agent
from reprise.torch.internals import optimizers
from reprise.torch.training.job import Job
from reprise.torch.training.loop import TrainingLoop, forward_runs, open_loops


class Counting(TrainingLoop):
    """Counts the steps of its optimizers, and what it is told besides."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(Job(model, Agent(None, "no agent", ""), None))
        self.steps = self.cleared_up = self.ends = 0
        self.fails = False
        self._observe()

    def _before_optimizer(self, optimizer: Optimizer) -> None:
        if self.fails:
            raise ValueError("an internal error")

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        self.steps += self._owns(optimizer)

    def _clear_up(self) -> None:
        self._cleared_up = True
        self.cleared_up += 1

    def gone(self) -> None:
        self.close()

    def close(self) -> None:
        self._leave()
        self.ends += 1


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 2)


@pytest.fixture
def loop(model: nn.Module) -> Iterator[Counting]:
    made = Counting(model)
    yield made
    made.close()
    optimizers.remove_unused()


def stepped(model: nn.Module) -> None:
    SGD(model.parameters(), lr=0.1).step()


def test_a_loop_counts_the_steps_of_its_own_optimizers_only(
    model: nn.Module, loop: Counting
) -> None:
    stepped(model)
    stepped(nn.Linear(2, 2))

    assert loop.steps == 1


def test_parameters_that_were_replaced_are_still_those_of_the_model(
    model: nn.Module, loop: Counting
) -> None:
    model.weight = nn.Parameter(torch.zeros(2, 2))
    model.bias = nn.Parameter(torch.zeros(2))

    stepped(model)

    assert loop.steps == 1


def test_after_an_internal_error_a_loop_clears_up_once_and_observes_no_more(
    model: nn.Module, loop: Counting
) -> None:
    loop.fails = True

    stepped(model)
    stepped(model)

    assert loop.job.broken
    assert "an internal error" in loop.job.fault
    assert (loop.cleared_up, loop.steps) == (1, 0)


def test_a_loop_ends_with_its_model() -> None:
    model = nn.Linear(2, 2)
    loop = Counting(model)

    del model

    assert loop.ends == 1
    assert loop not in open_loops


def test_a_forward_of_reprise_itself_is_known_to_all_loops(loop: Counting) -> None:
    assert not forward_runs()

    loop.job.busy = True

    assert forward_runs()
