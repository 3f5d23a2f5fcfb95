# SPDX-License-Identifier: Apache-2.0
"""cuDNN tries its algorithms in the first step of a shape, so that step is not the one to plan
for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, nn

from reprise.torch.session import first_calls

TRIED = 8 << 20


@pytest.fixture(autouse=True)
def _removed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    yield
    remove_all()


class Tries(nn.Module):
    """Takes memory at the first call with a shape, as cuDNN does on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3))
        self.known: set[torch.Size] = set()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape not in self.known:
            self.known.add(x.shape)
            torch.empty(TRIED, dtype=torch.uint8)
        return self.convolutions(x)


def _train(model: nn.Module, rows: list[int]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count in rows:
        optimizer.zero_grad()
        model(torch.randn(count, 1, 8, 8)).square().mean().backward()
        optimizer.step()


def test_algorithms_are_tried_on_a_gpu_where_the_program_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda:0")

    assert first_calls.tries_algorithms(gpu)
    assert not first_calls.tries_algorithms(torch.device("cpu"))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    assert not first_calls.tries_algorithms(gpu)


def test_a_step_that_tries_algorithms_is_not_captured_and_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_calls, "tries_algorithms", lambda _: torch.backends.cudnn.benchmark)
    agent, model = LocalAgent(), Tries()
    arm(model, agent, verify_every=0)

    _train(model, [2] * 6 + [4] * 4)

    sizes = [[s["bytes"] for s in graph["storages"]] for graph in agent.graphs]
    assert len(sizes) >= 2  # of both shapes
    assert all(size < TRIED for of_graph in sizes for size in of_graph)
    assert capsys.readouterr().err.count("torch.backends.cudnn.benchmark is on") == 1


def test_memory_of_a_first_call_is_not_in_the_base_of_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    agent, model = LocalAgent(), Tries()
    session = arm(model, agent, verify_every=0)
    keys = []

    _train(model, [2])
    keys.append(session.job.step.key)
    alone = session.job.measured.base(keys[0])[0]
    _train(model, [2, 2, 2])

    assert alone > TRIED  # until there is a second one
    assert 0 < session.job.measured.base(keys[0])[0] < TRIED
    assert all(graph["measured_peak_bytes"] < TRIED for graph in agent.graphs)


def test_a_program_with_a_new_shape_in_every_step_is_still_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_calls, "tries_algorithms", lambda _: True)
    agent, model = LocalAgent(), Tries()
    arm(model, agent, verify_every=0)

    _train(model, list(range(2, 2 + first_calls.PASSED_OVER + 4)))

    assert agent.graphs
