# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of several sizes are planned as if each were the largest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import curves, deep, sgd
from torch import nn

pytestmark = pytest.mark.usefixtures("removed")

WIDTH = 32


def ragged(
    agent: LocalAgent | None, rows: Callable[[int], list[int]], steps: int, *, together: bool
) -> list[str]:
    torch.manual_seed(4)
    model = nn.Sequential(deep(WIDTH), deep(WIDTH))
    if agent is not None:
        arm(model, agent, verify_every=0)
    optimizer = sgd(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        sums = []
        for number in rows(step):
            loss = model(torch.randn(number, WIDTH)).square().mean()
            if together:
                sums.append(loss)
            else:
                loss.backward()
        if together:
            torch.stack(sums).sum().backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def of_forwards(graph: dict, module: str, name: str) -> list[int]:  # type: ignore[type-arg]
    ops = [op for op in graph["ops"] if op["module"] == module and op["name"] == name]
    return [graph["storages"][op["writes"][0]]["bytes"] for op in ops]


@pytest.mark.parametrize("together", [False, True], ids=["each backward", "one backward"])
def test_every_micro_batch_of_the_graph_is_as_large_as_the_largest(together: bool) -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        return ragged(agent if armed else None, lambda _: [24, 96, 48], 8, together=together)

    curves(loop)

    assert of_forwards(agent.graphs[0], "1.0", "aten.addmm.default") == [96 * WIDTH * 4] * 3
    assert of_forwards(agent.graphs[0], "1.1", "aten.tanh.default") == [96 * WIDTH * 4] * 3
    assert of_forwards(agent.graphs[0], "1.1", "aten.tanh_backward.default") == [96 * WIDTH * 4] * 3


@pytest.mark.parametrize("together", [False, True], ids=["each backward", "one backward"])
def test_other_lengths_in_every_step_are_captured_once_and_run_under_that_plan(
    together: bool,
) -> None:
    agent = LocalAgent()
    lengths = [24, 96, 64, 32, 48, 80]  # the largest is in the captured step

    def rows(step: int) -> list[int]:
        return [lengths[(step * 5 + place * (step + 1)) % 6] for place in range(3)]

    def loop(armed: bool) -> list[str]:
        return ragged(agent if armed else None, rows, 16, together=together)

    curves(loop)

    assert sessions[0].job.plans.ladder.captures == 1
    assert [bool(s["flags"] & 1) for s in agent.steps] == [False] * 3 + [True] * 13
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    if sessions[0].job.meter.exact:
        assert sessions[0].job.record.verdict().over_budget_steps == 0
