# SPDX-License-Identifier: Apache-2.0
"""A model with parts that torch.compile compiles on their own trains as without Reprise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from torch import Tensor, nn

from reprise.torch.internals.dynamo import compiled_parts
from reprise.torch.policy.state import Stage
from reprise.torch.session import api
from reprise.torch.session.session import Session

Compile = Callable[..., Any]


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    remove_all()
    torch._dynamo.reset()


class Counting:
    """A backend that gives other numbers than eager code, as Inductor does, and counts calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, gm: Any, inputs: Any, **_: Any) -> Any:
        def run(*args: Any) -> Any:
            self.calls += 1
            out = gm.forward(*args)
            return type(out)(t * (1 + 2**-20) for t in out)

        return run


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Calls `then` on what its blocks make."""

    def __init__(self, then: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.then: Any = then

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x if self.then is None else self.then(x)  # type: ignore[no-any-return]


def in_place(net: Net, **options: Any) -> None:
    for block in net.blocks:
        block.compile(**options)


def wrapped(net: Net, **options: Any) -> None:
    for at, block in enumerate(net.blocks):
        net.blocks[at] = torch.compile(block, **options)


def forwards(net: Net, **options: Any) -> None:
    for block in net.blocks:
        block.forward = torch.compile(block.forward, **options)  # type: ignore[method-assign]


def function(net: Net, **options: Any) -> None:
    net.then = torch.compile(lambda x: torch.tanh(x) * 2, **options)


def trained(
    net: Net,
    loss: Callable[[Tensor], Tensor] = lambda y: y.square().mean(),
    steps: int = 8,
) -> list[str]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(net(torch.randn(4, 8)))
        value.backward()
        optimizer.step()
        found.append(value.item().hex())
    return found


def made(compile: Compile, **options: Any) -> tuple[Net, Counting]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, backend = Net(), Counting()
    compile(net, backend=backend, **options)
    return net, backend


@pytest.mark.parametrize(
    ("compile", "fullgraph"),
    [
        (in_place, False),
        (in_place, True),
        (wrapped, False),
        (forwards, False),
        (function, True),
    ],
)
def test_compiled_parts_run_compiled_in_every_step_and_that_is_logged(
    compile: Compile, fullgraph: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    net, backend = made(compile, fullgraph=fullgraph)
    expected, calls = trained(net), backend.calls
    net, backend = made(compile, fullgraph=fullgraph)
    session = arm(net, LocalAgent())

    found = trained(net)

    assert found == expected
    assert backend.calls == calls
    assert session.job.stage is Stage.PLAIN
    assert "parts of this model are compiled one by one" in session.job.why
    assert capsys.readouterr().err.count("compiled one by one") == 1
    assert str(api.report(net)).count("without a plan") == 1


def test_compiled_parts_are_found_by_name() -> None:
    net, _ = made(in_place)
    net.blocks[1] = torch.compile(net.blocks[1])
    function(net)

    assert compiled_parts(net) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]
    assert compiled_parts(Net(torch.compiler.disable(lambda x: x))) == []


@pytest.mark.parametrize("at", ["capture", "plan"])
def test_compiled_code_that_appears_late_runs_compiled_and_ends_planning(
    at: str,
) -> None:
    begins = {"capture": 2, "plan": 4}[at]
    compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend=Counting(), fullgraph=True)

    def run(armed: bool) -> tuple[list[str], Session | None]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        calls = 0

        def then(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            y = compiled(x.sin()) if calls > begins else x.sin() * 2
            return net.blocks[0](y)  # type: ignore[no-any-return]

        net = Net(then)
        session = arm(net, LocalAgent(), verify_every=0) if armed else None
        return trained(net, steps=7), session

    expected, _ = run(False)
    found, session = run(True)

    assert session is not None
    assert found == expected
    assert session.job.stage is Stage.PLAIN
    assert "compiled one by one" in session.job.why
    assert session.job.measured.planned_steps == (0 if at == "capture" else 1)


def test_a_compiled_loss_and_optimizer_stay_compiled_and_the_model_is_planned() -> None:
    def run(armed: bool) -> tuple[list[str], int, Session | None]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        net, backend = Net(), Counting()
        loss = torch.compile(
            lambda y: (y.exp() * y).square().mean(), backend=backend, fullgraph=True
        )
        session = arm(net, LocalAgent()) if armed else None
        return trained(net, loss), backend.calls, session

    expected, calls, _ = run(False)
    found, again, session = run(True)

    assert session is not None
    assert found == expected
    assert again == calls
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.planned_steps == 5
    assert session.job.measured.mismatched_steps == 0
