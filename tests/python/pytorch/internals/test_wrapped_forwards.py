# SPDX-License-Identifier: Apache-2.0
"""A model whose forward is wrapped, in any of the ways in which libraries do it, before or after it
was armed, is planned, and no bit changes."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from arming import arm
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.internals.forward import ArmedForward
from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")

Forward = Callable[..., Any]
Wrap = Callable[[nn.Module], nn.Module]


def fresh() -> nn.Module:
    """Returns a model of a class of its own, which a test may change."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
            self.head = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))  # type: ignore[no-any-return]

    torch.manual_seed(1)
    return Net()


def doubled(forward: Forward) -> Forward:
    """What a decorator of a program does: the result shows how often it was applied."""

    @functools.wraps(forward)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) * 2

    return inner


def in_bf16(forward: Forward) -> Forward:
    return torch.autocast("cpu", torch.bfloat16)(forward)  # type: ignore[no-any-return]


class InFloat32:
    """Casts what a forward returns; an object that stands for a function."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        functools.update_wrapper(self, forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs).float()


def function(forward: Any) -> Forward:
    def called(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    called.__wrapped__ = forward  # type: ignore[attr-defined]
    return called


def put(model: Any, forward: Any) -> nn.Module:
    model.forward = forward
    return model  # type: ignore[no-any-return]


def mixed_precision(model: Any) -> nn.Module:
    """Autocast around the function of the method, and float32 around that, with the method kept."""
    model._original_forward = model.forward
    model.forward = MethodType(in_bf16(model.forward.__func__), model)
    return put(model, MethodType(function(InFloat32(model.forward.__func__)), model))


def with_hooks(model: Any) -> nn.Module:
    """Moves what goes in and comes out, as offloading does."""
    old = model._old_forward = model.forward

    def new(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module._old_forward(*args, **kwargs) * 2

    return put(model, functools.update_wrapper(functools.partial(new, model), old))


def replaced(model: Any) -> nn.Module:
    """Another forward, which calls nothing of the old one."""
    return put(model, MethodType(lambda self, x: self.head(torch.sin(self.body(x))), model))


def of_the_dict(model: Any) -> nn.Module:
    vars(model)["forward"] = MethodType(doubled(type(model).forward), model)
    return model  # type: ignore[no-any-return]


def of_the_class(name: str) -> Wrap:
    def wrap(model: Any) -> nn.Module:
        kind = type(model)
        setattr(kind, name, doubled(getattr(kind, name)))
        return model  # type: ignore[no-any-return]

    return wrap


def call_impl(model: Any) -> nn.Module:
    model._call_impl = doubled(model._call_impl)
    return model  # type: ignore[no-any-return]


def call_impl_of_function(model: Any) -> nn.Module:
    model._call_impl = MethodType(doubled(model._call_impl.__func__), model)
    return model  # type: ignore[no-any-return]


def unwrapped_again(model: Any) -> nn.Module:
    """Wraps, and puts the method back that it had kept."""
    kept = model.forward
    put(model, MethodType(doubled(model.forward.__func__), model))
    model(torch.randn(2, WIDTH))
    return put(model, kept)


def deleted_again(model: Any) -> nn.Module:
    put(model, MethodType(doubled(model.forward.__func__), model))
    del model.forward
    return model  # type: ignore[no-any-return]


class Engine(nn.Module):
    """A module around the model, as engines and data-parallel wrappers are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(*args, **kwargs).float()


class Direct(Engine):
    """Calls the forward of the model, not the model."""

    def forward(self, x: Tensor) -> Any:
        return self.module.forward(x)


def direct(model: nn.Module) -> nn.Module:
    return Direct(put(model, MethodType(doubled(model.forward.__func__), model)))  # type: ignore[attr-defined]


def engine(model: nn.Module) -> nn.Module:
    return Engine(put(model, MethodType(doubled(model.forward.__func__), model)))  # type: ignore[attr-defined]


def accelerated(model: nn.Module) -> nn.Module:
    library = pytest.importorskip("accelerate")
    accelerator = library.Accelerator(mixed_precision="bf16", cpu=True)
    return accelerator.prepare(model)  # type: ignore[no-any-return]


def method(make: Callable[[Forward], Forward]) -> Wrap:
    """Returns a wrapper around the method of a model."""
    return lambda model: put(model, make(model.forward))


def of_function(make: Callable[[Forward], Forward]) -> Wrap:
    """Returns a wrapper around the function of the method of a model."""
    return lambda model: put(model, MethodType(make(model.forward.__func__), model))  # type: ignore[attr-defined]


WRAPS: dict[str, Wrap] = {
    "around the method": method(doubled),
    "around the function": of_function(doubled),
    "around the function of the class": lambda m: put(m, MethodType(doubled(type(m).forward), m)),
    "twice around the function": lambda m: of_function(doubled)(of_function(doubled)(m)),
    "around both": lambda m: method(doubled)(of_function(doubled)(m)),
    "autocast of the method": method(lambda f: InFloat32(in_bf16(f))),
    "autocast of the function": of_function(lambda f: function(InFloat32(in_bf16(f)))),
    "mixed precision": mixed_precision,
    "accelerate": accelerated,
    "hooks": with_hooks,
    "another forward": replaced,
    "partial": lambda m: put(m, functools.partial(type(m).forward, m)),
    "in the dict": of_the_dict,
    "forward of the class": of_the_class("forward"),
    "__call__ of the class": of_the_class("__call__"),
    "_call_impl": call_impl,
    "function of _call_impl": call_impl_of_function,
    "wrapped and put back": unwrapped_again,
    "wrapped and deleted": deleted_again,
    "engine": engine,
    "engine that calls forward": direct,
}


def trained(wrap: Wrap, armed: str = "", again: Wrap | None = None, steps: int = 9) -> Any:
    """Trains a wrapped model, `armed` before or after it was wrapped; returns losses, gradients and
    the session."""
    model = fresh()
    session = arm(model) if armed == "before" else None
    outer = wrap(model)
    if armed == "after":
        session = arm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = []
    for step in range(steps):
        torch.manual_seed(step)
        if again is not None and step == steps // 3:
            outer = again(model)
        optimizer.zero_grad()
        loss = outer(torch.randn(6, WIDTH)).square().mean()
        loss.backward()
        seen += [loss.detach().clone(), *(p.grad for p in model.parameters())]
        optimizer.step()
    return [torch.as_tensor(t).sum().item().hex() for t in seen], session


@pytest.mark.parametrize("armed", ["before", "after"])
@pytest.mark.parametrize("name", WRAPS)
def test_a_wrapped_model_is_planned_to_the_bit(name: str, armed: str) -> None:
    expected, _ = trained(WRAPS[name])
    found, session = trained(WRAPS[name], armed)

    assert found == expected
    assert session.job.stage is Stage.PLANNED, session.job.why
    assert session.job.measured.mismatched_steps == 0
    assert session.job.record.verdict().checks > 0
    assert session.job.record.verdict().checks_differing == 0


@pytest.mark.parametrize("name", ["around the method", "around the function", "mixed precision"])
def test_a_model_that_is_wrapped_while_it_trains_is_planned_again(name: str) -> None:
    def same(model: nn.Module) -> nn.Module:
        return model

    expected, _ = trained(same, again=WRAPS[name], steps=18)
    found, session = trained(same, "before", WRAPS[name], steps=18)

    assert found == expected
    assert session.job.stage is Stage.PLANNED, session.job.why
    assert session.job.record.verdict().checks_differing == 0


# These keep the replacement in what the program has made of it; its calls are plain.
LEFT = ("mixed precision", "accelerate", "hooks")


@pytest.mark.parametrize("name", WRAPS)
def test_a_wrapped_model_is_as_the_program_left_it_when_it_is_no_longer_armed(name: str) -> None:
    model = fresh()
    session = arm(model)
    outer = WRAPS[name](model)
    x = torch.randn(6, WIDTH)
    expected = WRAPS[name](fresh())(x)

    assert torch.equal(outer(x), expected)
    session.remove()

    assert torch.equal(outer(x), expected)
    assert torch.equal(outer(x), expected)
    for value in vars(model).values():
        assert not type(value).__module__.startswith("reprise") or name in LEFT


@pytest.mark.parametrize("first", [0, 1])
def test_a_model_that_is_armed_twice_is_as_the_program_left_it_in_the_end(first: int) -> None:
    model, calls = fresh(), [0, 0]

    def counted(number: int) -> Forward:
        def around(call: Forward, args: Any, kwargs: Any) -> Any:
            calls[number] += 1
            return call(*args, **kwargs)

        return around

    armed = [ArmedForward(model, counted(number)) for number in range(2)]
    x = torch.randn(6, WIDTH)
    model(x)
    assert calls == [1, 1]

    WRAPS["around the function"](model)
    theirs = vars(model)["forward"]
    expected = WRAPS["around the function"](fresh())(x)
    assert torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)
    assert calls == [3, 3]

    armed[first].remove()
    assert torch.equal(model(x), expected)
    assert sorted(calls) == [3, 4]
    armed[1 - first].remove()
    assert torch.equal(model(x), expected)
    assert sorted(calls) == [3, 4]
    assert vars(model)["forward"] is theirs


@pytest.mark.parametrize("name", ["around the function of the class", "another forward"])
def test_a_copy_of_a_wrapped_model_is_plain(name: str) -> None:
    model = fresh()
    arm(model)
    WRAPS[name](model)
    x = torch.randn(6, WIDTH)
    expected = model(x)

    copied = copy.deepcopy(model)

    assert torch.equal(copied(x), expected)
    assert vars(copied).keys() == vars(WRAPS[name](fresh())).keys()
    assert isinstance(vars(copied)["forward"], MethodType)
    assert vars(copied)["forward"].__self__ is copied


def test_an_armed_model_is_compiled_in_place_as_a_plain_one() -> None:
    model = fresh()
    arm(model)

    model.compile(backend="eager")

    x = torch.randn(6, WIDTH)
    assert torch.equal(model(x), fresh()(x))
    inner: Any = model._compiled_call_impl
    assert inner.__wrapped__.__func__ is nn.Module._call_impl


def test_a_called_model_dies_with_its_last_user() -> None:
    model = fresh()
    arm(model)
    model(torch.randn(2, WIDTH))
    gc.collect()
    known = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert known() is None
    finally:
        gc.enable()
