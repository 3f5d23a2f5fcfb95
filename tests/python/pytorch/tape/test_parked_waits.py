# SPDX-License-Identifier: Apache-2.0
"""Copies to the host may be as late as they like: bits are the same. Without any one of the waits
they are not. The waits of the streams of a GPU are removed in tests/fakegpu/parked.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jobs import different, plain_step, planned_step
from nets import job
from parking import movable, parked
from tapes import plan, prepared
from torch import Tensor, nn

from reprise.torch.offload.slab import Slab
from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.tape import parked as module
from reprise.torch.tape.compile_plan import compile_plan
from reprise.torch.tape.tape import Tape

pytestmark = pytest.mark.usefixtures("half")  # with and without the native engine of the tape


class LateTier(SlowTier):
    """Copies when somebody waits, or at a random moment before; what nobody waits for is not
    copied."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(1)
        self._rng = None if seed is None else random.Random(seed)
        self._left: list[Late] = []

    def out(self, source: Tensor, target: Tensor) -> Any:
        return self._begin(source, target)

    def back(self, source: Tensor, target: Tensor) -> Any:
        return self._begin(source, target)

    def _begin(self, source: Tensor, target: Tensor) -> Late:
        self._left.append(Late(source, target))
        if self._rng is not None:
            for late in self._left:
                if self._rng.random() < 0.2:
                    late.wait()
        return self._left[-1]


class Late:
    def __init__(self, source: Tensor, target: Tensor) -> None:
        self.copy: Callable[[], Any] | None = lambda: target.copy_(source)

    def wait(self) -> None:
        copy, self.copy = self.copy, None
        if copy is not None:
            copy()


class Keeps(nn.Module):
    """Its program may write what it has made, after the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.made: list[Tensor] = []
        self.writes = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin().exp().tanh()
            if self.writes:
                self.made.append(x.detach())
        return x


def wrong(tier: Any, writes: bool = False, seed: int = 2) -> list[str]:
    """Which gradients of a step with storages on the host are not those of a plain one."""
    made = job(Keeps(), 64, 32)
    graph = prepared(made)
    schedule, moved = parked(graph.message(), plan(graph, seed, share=0.0), movable(graph), seed, 1)
    assert len(moved) > 5
    expected = plain_step(made, 0, step=False)
    tape = Tape(compile_plan(graph, schedule), tier=tier)
    if not writes:
        return different(expected, planned_step(made, graph, [], 0, step=False, tape=tape)[0])
    made.begin(0)
    made.model.writes = True
    tape.begin()
    with tape.region():
        out = made.model(*made.inputs)
    loss = made.loss(out)
    assert tape.run.parked is not None
    # Of what autograd has saved, too, it would find out that it was written.
    saved = zip(graph.step.slots, tape.program.slots, strict=True)
    kept = {slot.storage.id for slot, discarded in saved if not discarded}
    copies = tape.run.parked._copies.items()
    leaving = {module._id(c.here) for s, c in copies if c.here is not None and s not in kept}
    written = [tensor for tensor in made.model.made if module._id(tensor) in leaving]
    assert len(written) > 1
    for tensor in written:
        tensor.zero_()
    loss.backward()
    return different(expected, made.state())


@pytest.mark.parametrize("seed", [None, *range(6)])
@pytest.mark.parametrize("writes", [False, True])
def test_however_late_copies_are_bits_are_equal(seed: int | None, writes: bool) -> None:
    assert wrong(LateTier(seed), writes) == []


def _leave(copy: Any) -> None:
    if copy.host is not None:
        copy.out = copy.here = None


def _arrive(copy: Any) -> Tensor | None:
    came = copy.coming
    copy.coming = copy.back = None
    return came


@pytest.mark.parametrize(
    ("owner", "name", "by", "writes"),
    [
        (module._Copy, "leave", _leave, False),
        (module._Copy, "arrive", _arrive, False),
        (module.Parked, "before_write", lambda *_: None, True),
        (module.Parked, "waits", lambda _: False, True),
    ],
)
def test_without_a_wait_bits_differ(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, by: Any, writes: bool
) -> None:
    monkeypatch.setattr(owner, name, by)

    assert wrong(LateTier(), writes) != []


def test_places_that_are_still_needed_make_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_graphs() -> list[str]:
        made = job(Keeps(), 64, 32)
        graph = prepared(made)
        schedule, _ = parked(graph.message(), plan(graph, 2, share=0.0), movable(graph), 2, 1)
        tape = Tape(compile_plan(graph, schedule), tier=LateTier())
        made.begin(0)
        losses, expected = [], []
        for _ in range(2):
            x = torch.randn(64, 32)
            plain = torch.autograd.grad(made.loss(made.model(x)), list(made.model.parameters()))
            expected.append(plain)
            tape.begin()
            with tape.region():
                out = made.model(x)
            losses.append(made.loss(out))
        found = [torch.autograd.grad(loss, list(made.model.parameters())) for loss in losses]
        return [
            "other"
            for left, right in zip(expected, found, strict=True)
            if not all(map(torch.equal, left, right))
        ]

    assert two_graphs() == []
    monkeypatch.setattr(Slab, "claim", lambda *_: True)
    assert two_graphs() != []
