# SPDX-License-Identifier: Apache-2.0
"""What a step made from shapes is foretold to need, beside real ones with other losses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.once import capture_step
from reprise.torch.estimation.sketch import Sketch, sketched

ROWS, WIDTH = 64, 32


class Net(nn.Module):
    """A frozen layer, which does not keep the batch; the output is one that autograd keeps if
    `keeps`."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers[0].requires_grad_(False)
        self.keeps = keeps

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.layers
        x = first(x)
        for layer in others:
            x = layer(x.tanh())
        return x.sigmoid() if self.keeps else x


def cross_entropy(output: Tensor) -> Tensor:
    return F.cross_entropy(output, torch.zeros(ROWS, dtype=torch.int64))


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def foretold(model: nn.Module) -> Sketch:
    return sketched(model, (torch.randn(ROWS, WIDTH),), {}, 1 << 20)


def beyond(graph: CapturedGraph, static_bytes: int) -> int:
    return graph.measured_peak_bytes - static_bytes


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("loss", [cross_entropy, mean_square])
def test_a_larger_loss_leaves_room_for_what_a_mean_square_takes(
    keeps: bool, loss: Callable[[Tensor], Tensor]
) -> None:
    model, x = Net(keeps), torch.randn(ROWS, WIDTH)

    def step() -> None:
        output = model(x)
        loss(output).backward()

    captured = capture_step(model, step)
    sketch = foretold(model)

    real = beyond(captured, captured.step.live_begin)
    graphs = {cross_entropy: sketch.graph, mean_square: sketch.with_larger_loss().graph}
    # The classes to find are 8 bytes each here, and the scalars are some bytes.
    assert abs(beyond(graphs[loss], 1 << 20) - real) <= 8 * ROWS + 64


def test_a_model_that_returns_its_loss_has_no_larger_one() -> None:
    class Whole(Net):
        def forward(self, x: Tensor) -> Tensor:
            return mean_square(super().forward(x))

    model = Whole(True)
    sketch = foretold(model)

    assert sketch.with_larger_loss() is sketch


@pytest.mark.parametrize("keeps", [True, False])
def test_the_least_of_a_step_is_that_of_a_program_that_lets_go_of_batch_and_output(
    keeps: bool,
) -> None:
    model = Net(keeps)
    captured = capture_step(
        model, lambda: cross_entropy(model(torch.randn(ROWS, WIDTH))).backward()
    )

    sketch = foretold(model)

    assert sketch.least_static_bytes == (1 << 20) - 4 * ROWS * WIDTH
    real = beyond(captured, captured.step.live_begin)
    assert abs(sketch.least_peak_bytes - sketch.least_static_bytes - real) <= 8 * ROWS + 64
