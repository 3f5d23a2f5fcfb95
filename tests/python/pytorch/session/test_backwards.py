# SPDX-License-Identifier: Apache-2.0
"""Backwards of many kinds: twice, of gradients, through checkpoints and hooks, interrupted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from arming import arm, sessions
from local_agent import LocalAgent
from loops import compared, curves, deep, gradients, train
from nets import WIDTH, RandomNet
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")


def test_several_backwards_through_one_graph_give_equal_gradients_and_are_logged_once() -> None:
    agent = LocalAgent()

    def one(model: nn.Module, step: int) -> list[Tensor]:
        first, second = model(torch.randn(6, WIDTH))
        first.square().mean().backward(retain_graph=True)
        second.square().mean().backward()
        return gradients(model)

    compared(lambda: RandomNet(5), one, agent=agent)

    assert all(c["differing"] == 0 for c in agent.checks)


def test_gradients_of_gradients_are_equal() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1), nn.Softplus())

    def one(model: nn.Module, step: int) -> list[Tensor]:
        x = torch.randn(6, WIDTH, requires_grad=True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.mean() + (grad.norm(dim=1) - 1).square().mean()
        loss.backward()
        return [loss]

    compared(net, one, verify_every=0)


class Checkpoints(nn.Module):
    """A program that recomputes a part by itself, in its own way."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.inner, self.last = deep(), deep(), deep()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return self.last(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_the_program_are_kept(reentrant: bool) -> None:
    agent = LocalAgent()

    def loop(armed: bool) -> list[str]:
        model = Checkpoints(reentrant)
        if armed:
            arm(model, agent)
        return train(model, 9)

    curves(loop)

    assert sessions[0].job.stage is Stage.PLANNED
    assert sum(s.get("mismatches", 0) for s in agent.steps) == 0
    assert all(c["differing"] == 0 for c in agent.checks)


def test_saved_tensor_hooks_inside_the_model_keep_their_tensors() -> None:
    packed = [0]

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = deep(), deep()

        def pack(self, tensor: Tensor) -> Tensor:
            packed[0] += 1
            return tensor.double()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t.float()):
                return self.inner(x)

    def loop(armed: bool) -> list[str]:
        model = Hooked()
        packed[0] = 0
        if armed:
            arm(model, verify_every=0)
        losses = train(model, 9)
        counts.append(packed[0])
        return losses

    counts: list[int] = []
    curves(loop)

    assert counts[0] == counts[1] > 0
    assert sessions[0].job.stage is Stage.PLANNED


def test_an_exception_in_the_backward_does_not_affect_later_steps() -> None:
    agent = LocalAgent()

    class Trap(torch.autograd.Function):
        set = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            if Trap.set:
                raise ValueError("a trap")
            return grad

    class Trapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = deep(), deep()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Trap.apply(self.first(x)))  # type: ignore[no-untyped-call]

    def loop(armed: bool) -> list[str]:
        model = Trapped()
        if armed:
            arm(model, agent)
        losses = train(model, 5)
        Trap.set = True
        with pytest.raises(ValueError, match="a trap"):
            train(model, 1)
        Trap.set = False
        return losses + train(model, 8)

    curves(loop)

    assert sessions[0].job.stage is Stage.PLANNED
    assert agent.steps[-1]["mismatches"] == 0
