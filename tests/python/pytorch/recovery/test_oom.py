# SPDX-License-Identifier: Apache-2.0
"""Who is told when memory runs out, and what is found in the memory then."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, nn

from reprise.torch.estimation.fake_meter import FakeTensors
from reprise.torch.recovery import oom
from reprise.torch.recovery.moment import asked_bytes, module_of


@pytest.fixture(autouse=True)
def _removed() -> Any:
    yield
    remove_all()


def nothing() -> None:
    """Does nothing once memory that ran out has ended the program."""


def test_the_allocator_has_one_observer_until_the_last_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached: list[Any] = []
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False
    )
    monkeypatch.setattr(oom, "_observed", [])
    told: list[tuple[Any, int]] = []
    device = torch.device("cuda:0")

    oom.Watch(device, lambda error, asked: told.append((error, -asked)), nothing).remove()
    second = oom.Watch(device, lambda error, asked: told.append((error, asked)), nothing)
    (observer,) = attached  # it cannot be taken out again, so there is one
    observer(0, 4096, 8192, 16)
    second.remove()
    observer(0, 4096, 8192, 16)

    assert told == [(None, 4096)]


def test_an_allocator_without_observers_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attach(_: Any) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attach, raising=False)
    monkeypatch.setattr(oom, "_observed", [])
    told: list[Any] = []

    watch = oom.Watch(torch.device("cuda:0"), lambda error, asked: told.append(error), nothing)
    sys.excepthook(torch.OutOfMemoryError, torch.OutOfMemoryError("CUDA out of memory"), None)
    watch.remove()

    assert len(told) == 1  # what nobody catches is told all the same


def test_the_hook_for_uncaught_errors_is_removed_with_the_last_session() -> None:
    before = sys.excepthook

    watch = oom.Watch(torch.device("cpu"), lambda error, asked: None, nothing)

    assert sys.excepthook != before
    watch.remove()
    assert sys.excepthook == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total", 20 << 20),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes.", 123),
        ("Tried to allocate 1.50 GiB", 3 << 29),
        ("no room", 0),
    ],
)
def test_the_requested_bytes_are_read_from_the_allocators_message(text: str, expected: int) -> None:
    assert asked_bytes(RuntimeError(text)) == expected


class Hungry(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x).tanh()
            if self.fail and number == 2:
                raise torch.OutOfMemoryError("Tried to allocate 2.00 KiB")
        return x


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 32)).sum().backward()
    optimizer.step()


@pytest.mark.train
@pytest.mark.parametrize("steps", [1, 7])  # plain, and under a plan
def test_every_live_byte_is_reported_and_most_of_them_with_their_maker(
    steps: int, scarce: None
) -> None:
    agent, model = LocalAgent(), Hungry()
    session = arm(model, agent, verify_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        step(model, optimizer)
    # Not of torch's allocator, which the bytes alive do not count.
    foreign = torch.frombuffer(bytearray(1000), dtype=torch.uint8)

    model.fail = True
    with pytest.raises(torch.OutOfMemoryError):
        step(model, optimizer)

    assert foreign.sum() == 0
    # A planned forward is taken again, under a tighter plan, and fails again.
    assert len(agent.moments) == (2 if steps > 1 else 1)
    moment = agent.moments[0]
    storages = moment["storages"]
    assert sum(s["bytes"] for s in storages) + moment["more_bytes"] == moment["live_bytes"]
    assert (moment["step"], moment["phase"], moment["asked_bytes"]) == (steps + 1, 1, 2048)
    saved = [s for s in storages if s["made_by"] and not s["name"].endswith(("weight", "bias"))]
    assert any("tanh" in s["made_by"] for s in saved)
    assert any("layers." in s["module"] for s in saved)
    if steps > 1:
        assert session.plan is not None
        assert moment["plan_id"] == f"{1:016x}"


def test_a_step_with_a_larger_input_is_not_called_the_one_that_was_planned(scarce: None) -> None:
    agent, model = LocalAgent(), Hungry()
    session = arm(model, agent, verify_every=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(7):
        step(model, optimizer)
    assert session.plan is not None

    model.fail = True
    # The first is captured; from then on they run under the plan of the smaller step.
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.randn(64, 32))

    assert len(agent.moments) >= 3
    assert not any("plan_id" in moment or "graph_id" in moment for moment in agent.moments)


def test_finding_what_filled_the_memory_unpacks_nothing() -> None:
    def refuse(_: Any) -> Tensor:
        raise AssertionError("unpacked")

    agent, model = LocalAgent(), Hungry()
    arm(model, agent, verify_every=0)
    model.fail = True

    # Hooks of the program: Reprise stands aside, and its look must not run them.
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, refuse),
        pytest.raises(torch.OutOfMemoryError),
    ):
        model(torch.randn(16, 32))

    assert len(agent.moments) == 1


@pytest.mark.filterwarnings("error")
def test_finding_what_filled_the_memory_asks_no_fake_tensor_where_it_is() -> None:
    agent, model = LocalAgent(), Hungry()
    arm(model, agent, verify_every=0)
    model.fail = True
    with FakeTensors():
        fake = torch.empty(8)
    torch.set_warn_always(True)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.randn(16, 32))
    finally:
        torch.set_warn_always(False)

    assert len(agent.moments) == 1
    assert fake.nbytes == 32  # it was alive all the time


def test_naming_the_module_that_ran_out_keeps_nothing_of_its_forward() -> None:
    class Hungry(nn.Module):
        def forward(self) -> None:
            out = torch.ones(8)
            made.append(weakref.ref(out))
            raise torch.OutOfMemoryError

    model = nn.Sequential(Hungry())
    made: list[Any] = []
    path = ""
    try:
        model[0]()
    except torch.OutOfMemoryError as error:
        path = module_of(model, error)

    assert path == "0"
    assert made[0]() is None
