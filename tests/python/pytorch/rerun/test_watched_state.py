# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a model before a planned forward, in Python and in C++: the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reprise.torch.rerun.snapshot import WatchedState

pytestmark = pytest.mark.usefixtures("half")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("mean", torch.arange(6.0))
        self.register_buffer("turned", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("low", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("large", torch.zeros(1 << 15))


def replaced(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad = weight.grad.clone()


def added_to(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad += 1


def taken(weight: Tensor) -> None:
    weight.grad = None


def replaced_where_the_old_one_was(weight: Tensor) -> None:
    weight.grad = None
    weight.grad = torch.ones(3, 3)


@pytest.mark.parametrize("change", [replaced, added_to, taken, replaced_where_the_old_one_was])
def test_a_gradient_that_was_replaced_is_recognized(change: Callable[[Tensor], None]) -> None:
    model = Model()
    for parameter in (model.one.weight, model.two.weight):
        parameter.grad = torch.ones(3, 3)
    untouched = WatchedState(model).gradients()
    assert untouched is not None
    assert untouched() == [True] * 4

    change(model.one.weight)

    assert untouched() == [False, True, True, True]


def test_a_gradient_where_there_was_none_counts_as_replaced() -> None:
    model = Model()
    model.one.weight.grad = torch.ones(3, 3)
    untouched = WatchedState(model).gradients()
    model.two.bias.grad = torch.ones(3)

    assert untouched is not None
    assert untouched() == [True, True, True, False]


def test_a_sparse_gradient_that_was_added_to_counts_as_replaced() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    untouched = WatchedState(model).gradients()
    assert untouched is not None
    assert untouched() == [True]

    model(torch.tensor([2])).sum().backward()

    assert untouched() == [False]


def test_no_gradient_is_kept_alive() -> None:
    model = Model()
    model.one.weight.grad = torch.ones(3, 3)
    gone = torch.Tensor.untyped_storage(model.one.weight.grad)
    untouched = WatchedState(model).gradients()
    end = weakref.ref(gone)
    del gone
    model.one.weight.grad = None

    assert untouched is not None
    assert end() is None


def test_without_gradients_none_are_recognized() -> None:
    assert WatchedState(Model()).gradients() is None


def test_buffers_are_restored() -> None:
    model = Model()
    before = {name: b.clone() for name, b in model.named_buffers()}
    strides = {name: b.stride() for name, b in model.named_buffers()}
    state = WatchedState(model)
    state.take()
    for name, buffer in model.named_buffers():
        if name != "large":
            buffer.logical_not_() if buffer.dtype == torch.bool else buffer.add_(1)

    assert not state.differs(model)
    state.restore()

    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert {name: b.stride() for name, b in model.named_buffers()} == strides


def written(model: Any) -> None:
    with torch.no_grad():
        model.one.weight.add_(1)


def large_written(model: Any) -> None:
    model.large.add_(1)


def another_parameter(model: Any) -> None:
    model.one.weight = nn.Parameter(model.one.weight.detach())


def another_buffer(model: Any) -> None:
    model.mean = model.mean.clone()


@pytest.mark.parametrize("change", [written, large_written, another_parameter, another_buffer])
def test_state_that_cannot_be_restored_is_detected(change: Callable[[Any], None]) -> None:
    model = Model()
    state = WatchedState(model)
    state.take()
    assert not state.differs(model)

    change(model)

    assert state.differs(model)
