# SPDX-License-Identifier: Apache-2.0
"""A captured or traced step consists of the program's ops, by their names: none of them is ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import nn

from reprise.torch.capture.captured import CapturedStep
from reprise.torch.job import job
from reprise.torch.planning import planning


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


def _trained(steps: int) -> LocalAgent:
    """Trains a network with buffers and in-place activations; returns its agent."""
    torch.manual_seed(0)
    agent = LocalAgent()
    blocks = [
        layer
        for _ in range(3)
        for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
    ]
    model = nn.Sequential(*blocks)
    arm(model, agent, verify_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return agent


def test_copies_of_buffers_are_no_ops_of_the_captured_step() -> None:
    agent = _trained(4)

    names = [op["name"] for op in agent.graphs[0]["ops"]]
    assert names[:2] == ["reprise.step_begin", "aten.convolution.default"]
    assert "aten.copy_.default" not in names
    assert "reprise.external" not in names


def test_replays_of_a_traced_step_have_the_names_of_the_step_graph() -> None:
    agent = _trained(6)

    known = {op["name"] for op in agent.graphs[0]["ops"]}
    begin = agent.op_names.index("reprise::recompute")
    replayed = {
        name
        for burst, name in zip(agent.op_names[begin:], agent.op_names[begin + 1 :], strict=False)
        if burst == "reprise::recompute"
    }
    assert replayed
    assert replayed <= known
    assert not any("built-in" in name for name in agent.op_names)


def test_what_is_measured_after_a_captured_step_is_not_among_its_allocations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    end, captured = job.Tracing.end, planning.Planning.captured

    def ended(self: job.Tracing) -> None:
        order.append("recorded")
        end(self)

    def planned(self: planning.Planning, step: CapturedStep) -> None:
        order.append("planned")
        captured(self, step)

    monkeypatch.setattr(job.Tracing, "end", ended)
    monkeypatch.setattr(planning.Planning, "captured", planned)

    _trained(3)

    # Two plain steps, then the captured one, which is recorded before it is planned.
    assert order[:4] == ["recorded", "recorded", "recorded", "planned"]
