# SPDX-License-Identifier: Apache-2.0
"""The first steps of a model inside DistributedDataParallel: what the wrapper tells of them, and
what it keeps beside them. The ranks are one here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from reprise.torch.internals.distributed import adds_up, copies_output, wrapper_around

ROWS, WIDTH = 64, 32


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    remove_all()
    distributed.destroy_process_group()


class Net(nn.Module):
    """Notes in each forward what its wrapper is about to do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x.tanh())
        return x.sigmoid()  # which autograd keeps, beside a copy of it


def train(wrapper: nn.Module, steps: int, batches: int = 1, none_until: int = 0) -> list[str]:
    """Trains; gradients are set to none in the first `none_until` steps, then to zero."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.01)
    seen = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step < none_until)
        for batch in range(batches):
            last = batch == batches - 1
            with nullcontext() if last else wrapper.no_sync():
                loss = wrapper(torch.randn(ROWS, WIDTH)).square().mean()
                loss.backward()
            seen.append(loss.item().hex())
        optimizer.step()
    return seen + [p.detach().double().sum().item().hex() for p in wrapper.parameters()]


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def gradient_bytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, [False] * 3),
        ({"find_unused_parameters": True}, [True] * 3),
        ({"static_graph": True}, [True, False, False]),
    ],
)
def test_a_wrapper_tells_whether_it_hands_out_a_copy_of_the_output(
    options: dict[str, Any], copies: list[bool]
) -> None:
    found = []

    class Looks(Net):
        def forward(self, x: Tensor) -> Tensor:
            found.append((copies_output(wrapper_around(self)), adds_up(wrapper_around(self))))
            return super().forward(x)

    model = Looks()
    train(DistributedDataParallel(model, **options), 3)
    model(torch.randn(ROWS, WIDTH))  # outside of its wrapper

    assert found == [(copy, False) for copy in copies] + [(False, False)]


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_the_first_step_is_foretold_with_the_copy_that_its_wrapper_makes(
    options: dict[str, Any],
) -> None:
    agent, model = LocalAgent(), made()
    arm(model, agent, first="auto")

    train(DistributedDataParallel(model, **options), 5, none_until=5)

    shapes, captured = agent.graphs
    # An output is 8 kB. The batch is not kept by this model: it is gone at the peak of the real
    # step, and static in the other. The classes that a cross entropy has are 8 bytes each.
    real = captured["measured_peak_bytes"] - captured["static_bytes"]
    foretold = shapes["measured_peak_bytes"] - shapes["static_bytes"]
    assert abs(foretold - real) <= 8 * ROWS + 64


def test_a_first_step_that_syncs_later_is_planned_as_one_that_adds_to_gradients() -> None:
    agent, plain, planned = LocalAgent(), made(), made()
    session = arm(planned, agent, first="auto")

    expected = train(DistributedDataParallel(plain), 6, 2, none_until=6)
    gc.collect()  # the buckets of that one, which would die between the two graphs
    losses = train(DistributedDataParallel(planned), 6, 2, none_until=6)

    assert losses == expected
    assert session.job.record.verdict().over_budget_steps == 0
    flavours = [graph["flavour"] for graph in agent.graphs]
    assert flavours == ["eager-shapes", "eager-dispatch"]
    shapes, captured = agent.graphs
    batch = 4 * ROWS * WIDTH
    more = shapes["static_bytes"] - batch - captured["static_bytes"]
    # The captured step makes them anew. The last loss is alive meanwhile.
    assert more == pytest.approx(gradient_bytes(planned), abs=64)
