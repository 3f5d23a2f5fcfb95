# SPDX-License-Identifier: Apache-2.0
"""Ends of steps where no optimizer of torch updates the model's own parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from arming import arm
from loops import curves, deep
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.policy.state import Stage
from reprise.torch.session.session import Session

pytestmark = pytest.mark.usefixtures("removed")

Update = Callable[[nn.Module], None]


def by_hand(model: nn.Module) -> Update:
    """Writes parameters through `data`, which moves no version counter."""

    def update(model: nn.Module) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.data -= 0.05 * p.grad
            p.grad = None

    return update


def in_place(model: nn.Module) -> Update:
    def update(model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=0.05)
                p.grad.zero_()

    return update


def from_masters(model: nn.Module) -> Update:
    """As Megatron, Apex and DeepSpeed do: an optimizer of copies in another precision."""
    masters = [p.detach().double().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.01)

    def update(model: nn.Module) -> None:
        for p, master in zip(model.parameters(), masters, strict=True):
            assert p.grad is not None
            master.grad, p.grad = p.grad.double(), None
        optimizer.step()
        for p, master in zip(model.parameters(), masters, strict=True):
            p.data.copy_(master)

    return update


def from_one_flat_master(model: nn.Module) -> Update:
    flat = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    master = torch.cat([flat, flat.new_zeros(7)]).requires_grad_()
    optimizer = torch.optim.SGD([master], lr=0.05)

    def update(model: nn.Module) -> None:
        grads = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
        master.grad = torch.cat([*grads, master.new_zeros(7)])
        optimizer.step()
        at = 0
        for p in model.parameters():
            p.data.copy_(master.detach()[at : at + p.numel()].view_as(p))
            p.grad = None
            at += p.numel()

    return update


@pytest.mark.parametrize("forwards", [1, 3])
@pytest.mark.parametrize("how", [by_hand, in_place, from_masters, from_one_flat_master])
def test_a_loop_without_an_optimizer_of_the_models_parameters_is_planned(
    how: Callable[[nn.Module], Update], forwards: int
) -> None:
    sessions: list[Session] = []

    def loop(armed: bool) -> list[str]:
        torch.manual_seed(1)
        model = deep()
        if armed:
            sessions.append(arm(model))
        update = how(model)
        seen = []
        for _ in range(9):
            for _ in range(forwards):
                loss: Tensor = model(torch.randn(6, WIDTH)).square().mean()
                loss.backward()
                seen.append(loss.item().hex())
            update(model)
        return seen

    curves(loop)

    (session,) = sessions
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.planned_steps >= 4
    assert session.job.measured.mismatched_steps == 0


def test_the_optimizer_of_another_model_of_the_same_size_ends_no_step() -> None:
    def loop(armed: bool) -> list[str]:
        torch.manual_seed(1)
        model, other = deep(), deep()
        if armed:
            sessions.append(arm(model))
        first, second = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (other, model))
        seen = []
        for _ in range(9):
            out = model(torch.randn(6, WIDTH))
            other(out).square().mean().backward()
            first.step()
            loss = model(torch.randn(6, WIDTH)).square().mean()
            loss.backward()
            second.step()
            first.zero_grad()
            second.zero_grad()
            seen.append(loss.item().hex())
        return seen

    sessions: list[Any] = []
    curves(loop)

    (session,) = sessions
    assert session.job.step.ended in (9, 10)  # the first step may have seemed to be two
    assert session.job.measured.planned_steps >= 4
