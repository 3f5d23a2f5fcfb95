# SPDX-License-Identifier: Apache-2.0
"""Tensors that wrap others go through every saved-tensor hook unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from jobs import start_meter
from local_agent import LocalAgent
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from reprise.torch.capture.capture import Capture
from reprise.torch.internals.host import HostSaves
from reprise.torch.internals.saved_hooks import packing, unpacking
from reprise.torch.internals.subclass import lacks_memory, parts_of, saved_alias, version_of
from reprise.torch.meter.state import alive_bytes
from reprise.torch.policy.state import Stage


class Wrapper(Tensor):
    """Has its bytes elsewhere, and does not say how it is put together."""

    _inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        made._inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inside(value: Any) -> Any:
            return value._inner if isinstance(value, Wrapper) else value

        return cls(func(*map(inside, args), **(kwargs or {})))


class Owner(Tensor):
    """Has its own bytes, and handles its own calls."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(value: Any) -> Any:
            return value.as_subclass(Tensor) if isinstance(value, Owner) else value

        with torch._C._DisableTorchDispatch():
            out = func(*map(plain, args), **(kwargs or {}))
        return out.as_subclass(cls)


def dtensor() -> Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    return distribute_tensor(torch.randn(4, 4), mesh, [Replicate()])


def two() -> Tensor:
    return TwoTensor(torch.randn(4, 4), torch.randn(4, 4))


def wrapper() -> Tensor:
    return Wrapper(torch.randn(4, 4))


def owner() -> Tensor:
    return torch.randn(4, 4).as_subclass(Owner)


KINDS = [two, wrapper, owner, dtensor]
Made = Callable[[], Tensor]


@pytest.fixture(autouse=True)
def _removed() -> Iterator[None]:
    yield
    remove_all()


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def in_capture(host: bool) -> Callable[[Tensor], Tensor]:
    def through(tensor: Tensor) -> Tensor:
        model = nn.Linear(2, 2)
        capture = Capture(model, start_meter(), host=HostSaves(model) if host else None)
        capture.begin([], {})
        try:
            with capture.region():
                packed = capture._packing.pack(tensor)
            return capture._packing.unpack(packed)
        finally:
            capture.leave()

    return through


def after_a_fault(tensor: Tensor) -> Tensor:
    def fails(_: Any) -> Any:
        raise ValueError("a fault of ours")

    return unpacking(fails)(packing(fails)(tensor))


HOOKS = {
    "capture": in_capture(False),
    "capture, host": in_capture(True),
    "after a fault": after_a_fault,
}


@pytest.mark.parametrize("made", KINDS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_packed_tensor_is_unpacked_unchanged(hook: str, made: Made) -> None:
    tensor = made().requires_grad_()

    found = HOOKS[hook](tensor)

    assert type(found) is type(tensor)
    assert found.grad_fn is None
    assert found is not tensor
    assert found.shape == tensor.shape
    parts = zip(parts_of(found) or [found], parts_of(tensor) or [tensor], strict=True)
    assert all(
        a.untyped_storage()._cdata == b.untyped_storage()._cdata for a, b in parts if a is not found
    )


@pytest.mark.parametrize("made", KINDS)
def test_a_write_to_a_part_of_a_wrapper_is_detected(made: Made) -> None:
    tensor = made()
    alias = saved_alias(tensor)
    before = version_of(alias)

    if isinstance(tensor, Wrapper):
        pytest.skip("says nothing of its parts")
    parts_of(tensor)[0].add_(1)

    assert version_of(alias) > before


def test_bytes_are_counted_where_they_are() -> None:
    before = alive_bytes(torch.device("cpu"))

    tensor = TwoTensor(torch.zeros(1 << 10), torch.zeros(1 << 10))

    assert lacks_memory(tensor)
    assert alive_bytes(torch.device("cpu")) - before == 2 * 4 << 10


class Net(nn.Module):
    """A model whose middle computes on a tensor subclass."""

    def __init__(self, made: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), nn.Tanh())
        self.last = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), nn.Tanh())
        self._made, self._back = made, back

    def forward(self, x: Tensor) -> Tensor:
        inside = self._made(self.first(x))
        return self.last(self._back((inside * inside).sin()))  # type: ignore[no-any-return]


def as_dtensor() -> Net:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = init_device_mesh("cpu", (1,))
    return Net(
        lambda x: DTensor.from_local(x, mesh, [Replicate()], run_check=False),
        lambda x: x.to_local(),  # type: ignore[attr-defined]
    )


def test_a_model_that_computes_on_dtensors_is_planned_and_no_bit_changes() -> None:
    def run(armed: bool) -> tuple[list[str], Any]:
        torch.manual_seed(0)
        net = as_dtensor()
        session = arm(net, LocalAgent(), verify_every=2) if armed else None
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses, session

    expected, _ = run(False)
    found, session = run(True)

    assert found == expected
    assert session.job.stage is Stage.PLANNED, session.job.why
    assert session.job.measured.mismatched_steps == 0
    assert session.job.record.verdict().checks > 0
