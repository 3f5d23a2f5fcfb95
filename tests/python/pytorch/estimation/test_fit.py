# SPDX-License-Identifier: Apache-2.0
"""How large the inputs of a step may be."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jobs import start_meter
from torch import Tensor, nn
from torch.nn import functional as F

import reprise
from reprise.torch.estimation.fit import MOST, largest
from reprise.torch.estimation.shape import Shape

WIDTH = 64


def by_trial(needs: Callable[[int], int | None], budget: int, most: int) -> int:
    fits = [n for n in range(1, most) if (b := needs(n)) is not None and b <= budget]
    return max(fits, default=0)


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_size_is_found_whatever_curve_its_bytes_follow(seed: int) -> None:
    draw = random.Random(seed)
    static, slope, bend = draw.randrange(10**6), draw.randrange(1, 5000), draw.choice([0, 0, 3])
    stair, end = draw.choice([1, 7, 64]), draw.choice([10**6, 10**6, 300])
    budget = static + draw.randrange(2000) * slope
    asked = []

    def needs(n: int) -> int | None:
        asked.append(n)
        up = -(-n // stair) * stair
        return None if n > end else static + slope * up + bend * n * n

    found = largest(needs, budget, draw.choice([1, 30, 5000]))

    tries = len(asked)
    assert found == by_trial(needs, budget, 2100)
    assert tries <= (14 if stair == 1 and not bend and end > 2100 else 64)


def test_sizes_end_where_the_planner_could_not_be_asked_about_more() -> None:
    assert largest(lambda _: 1, 2, 1) == MOST


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dimension", [0, 2])
def test_a_shape_of_another_size_is_laid_out_as_the_tensor_is(
    layout: torch.memory_format, dimension: int
) -> None:
    sizes = [4, 3, 8, 6]
    shape = Shape.of(torch.empty(sizes, memory_format=layout))
    sizes[dimension] = 5

    resized = shape.resized(dimension, 5)

    expected = torch.empty(sizes, memory_format=layout)
    assert (resized.size, resized.stride) == (tuple(expected.shape), expected.stride())
    assert resized.bytes == expected.nbytes


class Layers(nn.Module):
    """Equal layers, for sequences of at most 48."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] <= 48, "at most 48"
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def step(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), torch.zeros_like(x))


def batch_of(n: int) -> Tensor:
    return torch.empty(n, 16, WIDTH, device="meta")


def peak_of(size: int) -> int:
    """Returns the measured peak of the third step, in bytes, as a budget counts it."""
    model, x = Layers(), torch.randn(size, 16, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    meter = start_meter()
    before = meter.live()
    for _ in range(3):
        meter.reset_peak()
        optimizer.zero_grad()
        step(model, x).backward()
        optimizer.step()
    return meter.peak() - before + sum(p.nbytes for p in model.parameters()) + x.nbytes


@pytest.mark.long
@pytest.mark.train
@pytest.mark.e2e
def test_what_is_said_to_fit_does_and_one_more_does_not(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    budget = 6_000_000

    found = reprise.fit(
        Layers(), step, batch_of, budget=budget, optimizer=torch.optim.AdamW, start=8
    )

    assert peak_of(found.plain) <= budget < peak_of(found.plain + 1)
    assert found.planned > found.plain
    assert found.sizes[0].size == found.plain
    assert all(one.is_planned == (one.size > found.plain) for one in found.sizes)
    assert found.fastest in {one.size for one in found.sizes}
    assert re.findall(r"largest with a plan +(\d+) ", str(found)) == [str(found.planned)]
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(found.planned, 16, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    reprise.auto(model, budget=found.sizes[-1].peak_bytes + 200_000)
    for _ in range(8):
        optimizer.zero_grad()
        step(model, x).backward()
        optimizer.step()
    report = reprise.report(model)
    assert report.planned_steps > 0, report.sentence
    assert report.measured_peak_bytes <= budget + 200_000


@pytest.mark.long
@pytest.mark.train
@pytest.mark.e2e
def test_a_model_that_takes_no_longer_sequence_ends_the_sizes_and_says_so(
    home: Path, agent_library: Path, daemon_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))

    found = reprise.fit(
        Layers(), step, lambda n: torch.empty(4, n, WIDTH, device="meta"), budget="1GiB", start=8
    )

    assert found.plain == found.planned == 48
    assert "at most 48" in found.limit
    assert "Larger sizes: at " in str(found)


def test_a_budget_that_is_a_share_of_a_step_says_nothing_of_how_much_there_is() -> None:
    with pytest.raises(reprise.RepriseError, match="does not say how many bytes there are"):
        reprise.fit(Layers(), step, batch_of, budget="0.5x")


def test_a_budget_below_the_parameters_fits_no_size() -> None:
    asked = []

    def make_batch(n: int) -> Tensor:
        asked.append(n)
        return batch_of(n)

    found = reprise.fit(Layers(), step, make_batch, budget="100KiB", start=4)

    assert found.plain == found.planned == 0
    assert min(asked) > 0


def test_a_step_that_depends_on_values_is_refused() -> None:
    def looks(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() if x.sum().item() > 0 else model(-x).sum()

    with pytest.raises(reprise.RepriseError, match="cannot be estimated from shapes alone"):
        reprise.fit(Layers(), looks, batch_of, budget="1GiB")


def test_a_first_size_that_is_computed_in_another_way_says_nothing_of_larger_ones() -> None:
    # Of a single small image torch computes a convolution itself, of more oneDNN does.
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3))

    one, four = (
        reprise.fit(
            model,
            lambda m, x: m(x).square().mean(),
            lambda size: torch.empty(size, 3, 32, 32, device="meta"),
            budget="12MB",
            start=start,
        )
        for start in (1, 4)
    )

    assert one.plain == four.plain > 16
    assert one.planned == four.planned
