# SPDX-License-Identifier: Apache-2.0
"""Every step that somebody asked to record is recorded, whenever the request comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import nn

from reprise.agent import abi


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


class CountingAgent(LocalAgent):
    """Counts the steps that begin within a window, as the native agent does."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = self.left = 0
        self.begun = False  # a step has begun within the window
        self.within = 0  # steps asked for; the call that begins a step finds it

    def ask(self, steps: int, when: str) -> None:
        if when == "between":  # a poll for plans found it
            self.kinds, self.left, self.begun = 7, steps, False
        else:
            self.within = steps

    def step(self, step: int) -> None:
        if self.kinds and self.left and self.begun:
            self.left -= 1
            self.kinds = self.kinds if self.left else 0
        if self.within:
            self.kinds, self.left, self.within = 7, self.within, 0
        self.begun = True

    def window_kinds(self) -> int:
        return self.kinds

    def window_begin(self, kinds: int = 0) -> None:
        self.kinds, self.left = kinds, 0

    def window_end(self) -> None:
        self.kinds = 0


@pytest.mark.parametrize("when", ["between", "as a step begins"])
@pytest.mark.parametrize("count", [1, 3])
def test_as_many_steps_are_recorded_as_were_asked_for(when: str, count: int) -> None:
    agent = CountingAgent()
    model = nn.Linear(4, 4)
    arm(model, agent, budget=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps: int) -> list[bool]:
        before = len(agent.steps)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        return [bool(one["flags"] & abi.STEP_WINDOW) for one in agent.steps[before:]]

    train(8)
    for _ in range(2):  # and again, once the first window is over
        agent.ask(count, when)
        assert train(6) == [True] * count + [False] * (6 - count)
        assert agent.kinds == 0
