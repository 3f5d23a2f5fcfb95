# SPDX-License-Identifier: Apache-2.0
"""A refusal against checkpoints by hand: at the heap that they need nothing is called impossible.

Each style of training runs plainly with every block checkpointed by hand, which says what heap is
within reach. With that as the budget Reprise plans the step, or says what its executor cannot do.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from jobs import start_meter
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import reprise

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_daemon")]

WIDTH, ROWS, STEPS = 32, 2048, 7
Style = Callable[[nn.Module, Tensor], Iterator[Tensor]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.norm(self.linear(x))).tanh()


class Net(nn.Module):
    """Blocks, checkpointed by hand or not."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.by_hand else block(x)
        return x


def sharp(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        moves = [p.grad * 0.1 for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def closures(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        yield optimizer.step(closure)  # type: ignore[arg-type]


def stepped_in_the_backward(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        yield loss


def twice_through_one_graph(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        out = model(x)
        loss = out.square().mean()
        loss.backward(retain_graph=True)
        out.sin().mean().backward()
        del out
        optimizer.step()
        yield loss


def gradient_penalty(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        point = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(point).sum(), point, create_graph=True)
        loss = (grad.norm(dim=1) - 1).square().mean()
        loss.backward()
        del grad, point
        optimizer.step()
        yield loss


def loss_of_its_own(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        out = model(x)
        for _ in range(3):
            out = F.gelu(out).tanh()
        loss = out.square().mean()
        del out
        loss.backward()
        optimizer.step()
        yield loss


def _run(style: Style, budget: str | None, by_hand: bool) -> tuple[list[str], int, str]:
    """Trains; returns losses, the highest heap of the later steps, and what the log says."""
    gc.collect()
    torch.manual_seed(0)
    model, x, meter = Net(by_hand), torch.randn(ROWS, WIDTH), start_meter()
    if budget:
        reprise.auto(model, budget=budget, warmup=2)
    losses, peaks = [], []
    try:
        meter.reset_peak()
        for loss in style(model, x):
            losses.append(loss.item().hex())
            peaks.append(meter.peak())
            del loss
            meter.reset_peak()
        report = reprise.report(model)
        return losses, max(peaks[2:]), f"{report.sentence} {report.why}"
    finally:
        reprise.remove(model)
        meter.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    "style",
    [
        sharp,
        closures,
        stepped_in_the_backward,
        twice_through_one_graph,
        gradient_penalty,
        loss_of_its_own,
    ],
)
def test_a_budget_that_manual_checkpoints_reach_is_not_called_impossible(style: Style) -> None:
    by_hand, reached, _ = _run(style, None, by_hand=True)

    losses, _, said = _run(style, f"{reached}B", by_hand=False)

    assert losses == by_hand
    assert "Nothing fits" not in said, said
    assert "It fits in" in said or "This executor cannot keep to" in said, said


def test_a_budget_that_no_checkpoint_reaches_is_called_impossible() -> None:
    _, reached, _ = _run(sharp, None, by_hand=True)

    _, _, said = _run(sharp, f"{reached // 4}B", by_hand=False)

    assert "Nothing fits in" in said
