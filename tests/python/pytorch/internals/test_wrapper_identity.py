# SPDX-License-Identifier: Apache-2.0
"""Wrapper tensors whose meaning hangs on which object a tensor in them is: what autograd saved of
them is interchangeable with the tensor, and training goes on to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from arming import sessions
from loops import compared, gradients
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from reprise.torch.internals.outside import OutsideCopy
from reprise.torch.internals.saved_hooks import packing, unpacking
from reprise.torch.internals.subclass import part_of, saved_alias
from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed", "scarce")

WIDTH = 8


class Wrapped(Tensor):
    """A tensor around `_data`, with a key. Tensors compute with each other if their keys are the
    same object."""

    _data: Tensor
    _key: Any

    @staticmethod
    def __new__(cls, data: Tensor, key: Any) -> Wrapped:
        made: Wrapped = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.size(), strides=data.stride(), dtype=data.dtype
        )
        made._data, made._key = data, key
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keys = [x._key for x in args if isinstance(x, Wrapped)]
        if any(key is not keys[0] for key in keys):
            raise RuntimeError("tensors with different keys")
        inside = [x._data if isinstance(x, Wrapped) else x for x in args]
        return cls(func(*inside, **(kwargs or {})), keys[0])

    @classmethod
    def wrap(cls, data: Tensor) -> Tensor:
        return _Wrap.apply(data, cls(data.detach(), cls.new_key()))  # type: ignore[no-any-return]

    @classmethod
    def new_key(cls) -> Any:
        raise NotImplementedError


class Indexed(Wrapped):
    """Its key is a tensor in it, as the offsets of a jagged tensor are."""

    @classmethod
    def new_key(cls) -> Any:
        return torch.arange(3)

    def __tensor_flatten__(self) -> Any:
        return ["_data", "_key"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Tensor:
        return cls(parts["_data"], parts["_key"])


class Keyed(Wrapped):
    """Its key is made anew when it is put together: only operators carry it on."""

    @classmethod
    def new_key(cls) -> Any:
        return object()

    def __tensor_flatten__(self) -> Any:
        return ["_data"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Tensor:
        return cls(parts["_data"], cls.new_key())


class Silent(Wrapped):
    """Does not say how it is put together."""

    @classmethod
    def new_key(cls) -> Any:
        return object()


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, data: Tensor, wrapped: Tensor) -> Tensor:
        return wrapped.view_as(wrapped)

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        return getattr(grads[0], "_data", grads[0]), None


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, wrapped: Any) -> Tensor:
        context.like = wrapped
        return wrapped._data.clone()  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, *grads: Any) -> Tensor:
        like = context.like
        return type(like)(grads[0], like._key)


OFFSETS = torch.tensor([0, 3, 8])
LENGTHS = torch.tensor([2, 4])


def jagged(data: Tensor) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(data, OFFSETS.clone())


def with_lengths(data: Tensor) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(data, OFFSETS.clone(), LENGTHS.clone())


def values(x: Any) -> Tensor:
    return x.values()  # type: ignore[no-any-return]


class Middle(nn.Module):
    """Computes on a wrapper between plain layers."""

    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
        self.last = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
        self._wrap, self._unwrap = wrap, unwrap

    def forward(self, x: Tensor) -> Tensor:
        inside = self._wrap(self.first(x))
        return self.last(self._unwrap((inside * inside).sin()))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention over jagged sequences, whose output is one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        heads = [f(h).unflatten(-1, [2, WIDTH // 2]).transpose(1, 2) for f in (self.q, self.k)]
        value = self.v(h).unflatten(-1, [2, WIDTH // 2]).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads, value).transpose(1, 2).flatten(-2)
        return self.out(mixed) + x  # type: ignore[no-any-return]


class Layers(nn.Module):
    """Linear layers and norms on jagged sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32)
        self.last = nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(self.norm(x)))) + x  # type: ignore[no-any-return]


def plain_batch(step: int) -> Tensor:
    return torch.randn(8, WIDTH)


def jagged_batch(step: int) -> Tensor:
    """Sequences with new offsets in each step."""
    return jagged(torch.randn(8, WIDTH))


def ragged_batch(step: int) -> Tensor:
    """Sequences of other lengths, and another number of them, in every second step."""
    offsets = torch.tensor([0, 4, 6, 12] if step % 2 else [0, 3, 8])
    return torch.nested.nested_tensor_from_jagged(torch.randn(int(offsets[-1]), WIDTH), offsets)


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "attention on jagged": (Attention, jagged_batch),
    "linear and norm on jagged": (Layers, jagged_batch),
    "attention on other lengths": (Attention, ragged_batch),
    "jagged inside": (lambda: Middle(jagged, values), plain_batch),
    "jagged with lengths": (lambda: Middle(with_lengths, values), plain_batch),
    "a key in it": (lambda: Middle(Indexed.wrap, _Unwrap.apply), plain_batch),
    "a key of the object": (lambda: Middle(Keyed.wrap, _Unwrap.apply), plain_batch),
    "not told how": (lambda: Middle(Silent.wrap, _Unwrap.apply), plain_batch),
}

# Their steps may leave the plan: other operators run, or a saved tensor has no known storage.
VARY = ("attention on other lengths", "not told how")


@pytest.mark.parametrize("budget", [None, "0.6x"])
@pytest.mark.parametrize("job", JOBS)
def test_a_model_on_wrappers_trains_to_the_bit(
    job: str, budget: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    make, batch = JOBS[job]
    torch.manual_seed(3)
    model = make()

    def one(model: Any, step: int) -> list[Tensor]:
        torch.manual_seed(step)
        out = model(batch(step))
        loss = (out.values() if out.is_nested else out).square().mean()
        loss.backward()
        return [loss, *gradients(model)]

    compared(lambda: copy.deepcopy(model), one, budget=budget, steps=10)

    (session,) = sessions
    if job not in VARY:
        assert session.job.measured.mismatched_steps == 0
    assert "Reprise failed" not in capsys.readouterr().err
    assert session.job.stage is (Stage.PLAIN if budget is None else Stage.PLANNED), session.job.why


def made(kind: str) -> Any:
    data = torch.randn(8, WIDTH)
    if kind == "two":
        return TwoTensor(data, data + 1)
    if kind in ("jagged", "lengths"):
        return jagged(data) if kind == "jagged" else with_lengths(data)
    classes = {"indexed": Indexed, "keyed": Keyed, "silent": Silent}
    return classes[kind](data, classes[kind].new_key())


KINDS = ["two", "jagged", "lengths", "indexed", "keyed", "silent"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("disabled", [False, True])
def test_an_alias_computes_with_its_tensor(kind: str, disabled: bool) -> None:
    tensor = made(kind).requires_grad_()

    guard = torch._C._DisableTorchDispatch() if disabled else None
    alias = saved_alias(tensor)
    del guard

    assert type(alias) is type(tensor)
    assert alias is not tensor
    assert not alias.requires_grad
    assert alias.size() == tensor.size()
    assert (alias + tensor).size() == tensor.size()
    assert part_of(tensor) is None  # nothing of it is planned


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_outside_the_allocator_computes_with_its_tensor(kind: str) -> None:
    tensor = made(kind)

    again: Any = OutsideCopy(tensor).tensor()

    assert type(again) is type(tensor)
    assert (again + tensor).size() == tensor.size()
    inside = "_values" if tensor.is_nested else "a" if kind == "two" else "_data"
    assert torch.equal(getattr(again, inside), getattr(tensor, inside))
    assert getattr(again, inside).data_ptr() != getattr(tensor, inside).data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_in_a_hook_leaves_the_tensor_that_autograd_saved(kind: str) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("an error of the hook")

    tensor = made(kind)

    found = unpacking(fails)(packing(fails)(tensor))

    assert type(found) is type(tensor)
    assert (found + tensor).size() == tensor.size()
