# SPDX-License-Identifier: Apache-2.0
"""Models on the meta device are planned once they have memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from arming import arm, remove_all, sessions
from torch import nn

import reprise
from reprise.torch.policy.state import Stage
from reprise.torch.session.deferred import defer
from reprise.torch.training import armed


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(16, 16), nn.GELU())])


def given_memory(model: nn.Module) -> nn.Module:
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def train(model: nn.Module, steps: int = 10) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def test_a_model_on_the_meta_device_is_planned_from_its_first_step_with_memory_on() -> None:
    expected = train(given_memory(on_meta()))
    model = on_meta()

    def begin(models: list[nn.Module]) -> None:
        arm(models[0])

    defer([model], begin)
    model(torch.empty(32, 16, device="meta"))  # as FLOPs are counted: still no memory
    assert sessions == []

    found = train(given_memory(model))

    assert found == expected
    assert sessions[0].job.stage is Stage.PLANNED
    assert sessions[0].job.step.number == 10  # the first one, too
    assert model not in armed.deferred


def test_a_model_that_waits_says_so_and_a_copy_of_it_does_not_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = on_meta()

    reprise.auto(model, budget="0.5x")

    assert "its parameters are on the meta device" in reprise.report(model).sentence
    assert capsys.readouterr().err == ""
    assert "forward" not in vars(copy.deepcopy(model))
    reprise.remove(model)
    assert "forward" not in vars(model)
    train(given_memory(model), 1)
    assert reprise.report(model).planned_steps == 0


def test_only_the_last_call_for_a_model_that_waits_counts() -> None:
    model = on_meta()
    begun: list[str] = []
    defer([model], lambda _: begun.append("first"))
    defer([model], lambda _: begun.append("second"))

    train(given_memory(model), 2)

    assert begun == ["second"]
    assert "forward" not in vars(model)
