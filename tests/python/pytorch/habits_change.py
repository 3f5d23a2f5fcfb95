# SPDX-License-Identifier: Apache-2.0
"""Models that are changed between steps, and steps that fail halfway."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from habits import STEPS, Arm, Shown, W, deep, habit, sgd, some, train
from torch import Tensor, nn


@habit
def another_type(arm: Arm) -> Iterator[Shown]:
    """Changes the model to double and back, with a new optimizer each time."""
    model = arm(deep())
    for dtype, steps in ((torch.float32, 8), (torch.float64, 7), (torch.bfloat16, 5)):
        model.to(dtype)
        yield from train(model, lambda _, d=dtype: model(some(16, W).to(d)).square().mean(), steps)


@habit
def frozen_and_thawed(arm: Arm) -> Iterator[Shown]:
    """Layers are frozen and thawed, a head is replaced, a module is added and taken away."""
    model = arm(nn.Sequential(deep(), deep(), nn.Linear(W, 4)))

    def loss(_: int) -> Tensor:
        return model(some(16, W)).square().mean()

    yield from train(model, loss, 6)
    model[0].requires_grad_(False)
    yield from train(model, loss, 5)
    model[0].requires_grad_(True)
    model[2] = nn.Sequential(nn.Linear(W, W), nn.ReLU(inplace=True), nn.Linear(W, 3))
    yield from train(model, loss, 5)
    model.append(nn.LayerNorm(3))
    yield from train(model, loss, 4)
    del model[1]
    yield from train(model, loss, 4)


@habit
def checkpoint_restored(arm: Arm) -> Iterator[Shown]:
    """A learning-rate finder: a few steps, then everything is restored, by copy and by
    assignment."""
    model = arm(nn.Sequential(deep(), nn.BatchNorm1d(W)))
    optimizer = sgd(model)

    def run(steps: int, lr: float) -> Iterator[Shown]:
        for group in optimizer.param_groups:
            group["lr"] = lr
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(some(16, W)).square().mean()
            loss.backward()
            optimizer.step()
            yield [loss.detach()], [model]

    yield from run(8, 0.05)
    kept, of_optimizer = (
        copy.deepcopy(model.state_dict()),
        copy.deepcopy(optimizer.state_dict()),
    )
    yield from run(5, 0.5)
    model.load_state_dict(kept)
    optimizer.load_state_dict(of_optimizer)
    yield from run(4, 0.05)
    model.load_state_dict(copy.deepcopy(kept), assign=True)
    optimizer = sgd(model)
    yield from run(6, 0.05)


@habit
def train_and_evaluate(arm: Arm) -> Iterator[Shown]:
    """Epochs with a validation after each, sometimes with gradients on."""
    model = arm(nn.Sequential(deep(), nn.BatchNorm1d(W)))
    optimizer = sgd(model)
    for epoch in range(5):
        model.train()
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(some(16, W)).square().mean()
            loss.backward()
            optimizer.step()
            yield [loss.detach()], [model]
        model.eval()
        with torch.set_grad_enabled(epoch % 2 == 1):
            yield [model(some(5, W)).sum().detach()], [model]


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = deep(), deep()
        self.where = ""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.where == "forward":
            raise ValueError("forward")
        return self.last(Trap.apply(h, self))  # type: ignore[no-untyped-call]


class Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, model: Fails) -> Tensor:
        ctx.model = model
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        if ctx.model.where == "backward":
            raise ValueError("backward")
        return grad, None


class FailingSGD(torch.optim.SGD):
    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise ValueError("optimizer")
        return super().step(closure)


@habit
def steps_that_fail(arm: Arm) -> Iterator[Shown]:
    """Steps that fail in the forward, the backward and the optimizer, in every stage of the job;
    the program catches the errors."""
    model = arm(Fails())
    optimizer = FailingSGD(model.parameters(), lr=0.05, momentum=0.9)
    fails = {2: "forward", 3: "backward", 5: "optimizer", 9: "backward", 10: "forward",
             11: "backward", 12: "optimizer", 13: "optimizer", 16: "forward"}  # fmt: skip
    for step in range(STEPS + 4):
        model.where = fails.get(step, "")
        optimizer.fails = model.where == "optimizer"
        said: list[float | Tensor] = []
        try:
            optimizer.zero_grad()
            loss = model(some(16, W)).square().mean()
            said.append(loss.detach())
            loss.backward()
            optimizer.step()
        except ValueError as error:
            said.append(len(str(error)))
        loss = None
        yield said, [model]


@habit
def batches_of_any_size(arm: Arm) -> Iterator[Shown]:
    model = arm(nn.Sequential(deep(), nn.Dropout(0.1), deep()))
    sizes = [8, 8, 8, 8, 8, 8, 20, 3, 8, 12, 31, 8, 40, 8, 5, 24]
    return train(model, lambda step: model(some(sizes[step % 16], W)).square().mean(), 26)


@habit
def compiled_after_arming(arm: Arm) -> Iterator[Shown]:
    """The same parameters, through torch.compile from some step on."""
    model = arm(deep(dropout=0.0))
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 8)
    compiled = torch.compile(model, backend="eager")
    yield from train(model, lambda _: compiled(some(16, W)).square().mean(), 6)
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 6)


@habit
def moved_through_a_file(arm: Arm) -> Iterator[Shown]:
    """The model is saved and loaded as a whole in the middle; the loaded one trains on, unarmed."""
    import io

    model = arm(deep())
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 8)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    yield from train(loaded, lambda _: loaded(some(16, W)).square().mean(), 4)
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 8)


@habit
def parameters_swapped(arm: Arm) -> Iterator[Shown]:
    """Parameters get other storages (a flat one), as fused optimizers make them."""
    model = arm(deep())
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 8)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    at = 0
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 8)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    yield from train(model, lambda _: model(some(16, W)).square().mean(), 5)
