# SPDX-License-Identifier: Apache-2.0
"""A program that changes its sharded batch between the forward and the backward, which the captured
step did not: what replays read of it is copied before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor

import reprise

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

WIDTH, ROWS, STEPS, CHANGED = 128, 256, 12, 8


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    distributed.destroy_process_group()


class Branches(nn.Module):
    """Each is a product of what is cheap to make again from the batch."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        weights = [torch.randn(WIDTH, WIDTH) / 16 for _ in range(6)]
        self.weights = nn.ParameterList(
            nn.Parameter(distribute_tensor(weight, mesh, [Replicate()])) for weight in weights
        )

    def forward(self, x: Tensor) -> Tensor:
        products = [(x * (number + 2)) @ weight for number, weight in enumerate(self.weights)]
        return torch.stack(products).sum(0)


def train(model: nn.Module, mesh: DeviceMesh) -> list[Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x = distribute_tensor(torch.randn(ROWS, WIDTH), mesh, [Replicate()])
        out = model(x)
        if step >= CHANGED:
            x.zero_()
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.to_local().detach().clone() for p in model.parameters()]  # type: ignore[attr-defined]


def test_a_batch_that_is_changed_before_the_backward_changes_no_bit(mesh: DeviceMesh) -> None:
    expected = train(Branches(mesh), mesh)
    model = reprise.auto(Branches(mesh), budget="0.7x", verify_every=0)

    found = train(model, mesh)

    report = reprise.report(model)
    reprise.remove(model)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert report.planned_steps > STEPS - CHANGED, report.sentence
