# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of several sizes are planned as if each were the largest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import curves, deep, sgd
from torch import nn

from reprise.plan import FreePolicy, StepGraph, evaluate
from reprise.plan.evaluate import base_schedule

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


def test_a_large_single_one_is_no_reason_not_to_capture_several_as_large() -> None:
    agent = LocalAgent()
    several, single, larger = [16, 24], [96], [88, 64]  # larger than any of the several known

    def rows(step: int) -> list[int]:
        return several if step < 8 else single if step < 20 else larger

    def loop(armed: bool) -> list[str]:
        return ragged(agent if armed else None, rows, 28, together=False)

    curves(loop)

    captured = [graph for graph in agent.graphs if "tensors" in graph]  # the others are foreseen
    largest = [max(of_forwards(graph, "1.0", "aten.addmm.default")) for graph in captured]
    assert largest == [size * WIDTH * 4 for size in (24, 96, 88)]


@pytest.mark.parametrize("rows", [[40] * 4, [40, 40, 40, 24]], ids=["alike", "a short last one"])
def test_what_another_model_does_around_the_micro_batches_is_not_evened(rows: list[int]) -> None:
    """A head that is called in chunks is the model, and the backward of the body runs after all of
    them: its ops have the names of the head's, in a number that the chunks divide."""
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        torch.manual_seed(4)
        widths = [16, 32, 128, 256, WIDTH]
        linear = [nn.Linear(a, b) for a, b in pairwise(widths)]
        body = nn.Sequential(*(layer for of in linear for layer in (of, nn.Tanh())))
        head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
        if armed:
            arm(head, agent, verify_every=0)
        optimizer = sgd(nn.Sequential(body, head))
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            hidden = body(torch.randn(sum(rows), widths[0]))
            chunks = [head(part).square().mean() for part in hidden.split(rows)]
            torch.stack(chunks).sum().backward()
            optimizer.step()
            losses.append(hidden.sum().item().hex())
        return losses

    curves(loop)

    graph = agent.graphs[0]
    step = StepGraph.from_message(graph)
    peak = evaluate(step, base_schedule(step, FreePolicy.PROGRAM)).peak_bytes
    assert peak == graph["measured_peak_bytes"]
    assert peak <= max(int(s["peak_bytes"]) for s in agent.steps if not int(s["flags"]) & 1)


def test_what_others_hold_from_one_micro_batch_on_is_in_the_plan() -> None:
    """As the threads of a collective library do: no op of the step makes it. A step that is
    captured under a plan shows it where a micro-batch begins, and in no peak."""
    held: list[torch.Tensor] = []

    def captured(first: str) -> StepGraph:
        agent = LocalAgent()
        torch.manual_seed(4)
        model = nn.Sequential(deep(WIDTH), deep(WIDTH))
        arm(model, agent, verify_every=0, first=first, budget="0.8x")
        optimizer = sgd(model)
        with ThreadPoolExecutor(1) as others:
            for _ in range(8):
                optimizer.zero_grad()
                for _ in range(3):
                    model(torch.randn(96, WIDTH)).square().mean().backward()
                    if not held:
                        held.append(others.submit(torch.ones, 100_000).result())
                optimizer.step()
                held.clear()
        graphs = (g for g in agent.graphs if g["flavour"] == "eager-dispatch")
        return StepGraph.from_message(next(graphs))

    plain, planned = (
        evaluate(step, base_schedule(step, FreePolicy.PROGRAM)).peak_bytes
        for step in map(captured, ("plain", "auto"))
    )

    if sessions[0].job.meter.exact:
        assert plain > 400_000
        assert abs(planned - plain) < 1024
