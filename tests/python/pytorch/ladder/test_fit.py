# SPDX-License-Identifier: Apache-2.0
"""Graphs of inputs that were never captured, made from those of two that were."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.once import capture_step
from reprise.torch.ladder.fit import fitted


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


def test_graphs_of_different_programs_are_not_fitted() -> None:
    assert fitted([(4, captured(4)), (8, captured(8, nn.Tanh))], 12) is None
