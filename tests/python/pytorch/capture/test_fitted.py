# SPDX-License-Identifier: Apache-2.0
"""Graphs of inputs that were never captured, made from those of two that were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from reprise.torch.capture.captured import CapturedStorage
from reprise.torch.capture.fitted import fitted
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.once import capture_step


def captured(rows: int, kind: type[nn.Module] = nn.GELU) -> CapturedGraph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), kind(), nn.Linear(8, 8))
    x = torch.randn(rows, 8)
    return capture_step(model, lambda: model(x).square().mean().backward())


def test_fitted_bytes_grow_as_between_the_two_captured_sizes() -> None:
    small, large = captured(4), captured(8)

    made = fitted([(4, small), (8, large)], 12)

    assert made is not None
    sizes = [[s["bytes"] for s in m["storages"]] for m in (small.message(), large.message(), made)]
    assert sizes[2] == [2 * b - a for a, b in zip(sizes[0], sizes[1], strict=True)]
    assert sizes[2] != sizes[1]


@pytest.mark.parametrize("which", [0, 1])
def test_graphs_are_fitted_even_if_the_program_held_a_storage_longer_in_one_of_them(
    which: int,
) -> None:
    graphs = [captured(4), captured(8)]
    held = next(s for s in graphs[which].storages if s.death is not None and not s.prior)
    held.death = None
    graphs[which] = replace(graphs[which], required=(*graphs[which].required, held.id))

    made = fitted([(4, graphs[0]), (8, graphs[1])], 12)

    assert made is not None
    assert made["required"] == list(graphs[1].required)


@pytest.mark.parametrize("which", [0, 1])
def test_graphs_are_fitted_even_if_memory_of_the_step_before_ended_in_one_of_them(
    which: int,
) -> None:
    graphs = [captured(4), captured(8)]
    alone = fitted([(4, graphs[0]), (8, graphs[1])], 12)
    graphs[which] = with_leftover(graphs[which], 4096)

    made = fitted([(4, graphs[0]), (8, graphs[1])], 12)

    assert made is not None
    assert alone is not None
    # Two lines go through 0 and 4096 bytes: to 8192, and to less than nothing, which no step has.
    assert before_the_step(made) == before_the_step(alone) + (8192 if which else 0)
    kept = [s["bytes"] for s in made["storages"]][: len(alone["storages"])]
    assert kept == [s["bytes"] for s in alone["storages"]]


def with_leftover(graph: CapturedGraph, size: int) -> CapturedGraph:
    """Returns the graph of the same step, at whose beginning `size` bytes more were alive that no
    op of it reads."""
    left = CapturedStorage(bytes=size, birth=0, prior=True, death=2, id=len(graph.storages))
    graph.step.ops[0].writes.append(left)
    return replace(graph, storages=(*graph.storages, left), release=(*graph.release, 2))


def before_the_step(message: dict[str, Any]) -> int:
    """Returns the bytes that are alive when the step of a graph's message begins."""
    writes = message["ops"][0]["writes"]
    return int(message["static_bytes"]) + sum(message["storages"][s]["bytes"] for s in writes)


def test_graphs_of_different_programs_are_not_fitted() -> None:
    assert fitted([(4, captured(4)), (8, captured(8, nn.Tanh))], 12) is None
