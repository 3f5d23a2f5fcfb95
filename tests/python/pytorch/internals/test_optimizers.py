# SPDX-License-Identifier: Apache-2.0
"""All models of a process share one pair of hooks of torch's optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, optimizer

from reprise.torch.capture.place import Place
from reprise.torch.capture.unpacked import Unpacked
from reprise.torch.internals import guard, optimizers


class Watches:
    def __init__(self, fails: bool = False) -> None:
        self.seen: list[str] = []
        self.fails = fails

    def before_optimizer(self, stepping: Optimizer) -> None:
        self.seen.append("before")
        if self.fails:
            optimizers.leave(self)  # its model dies in the middle of a step
            raise KeyError("ours")

    def after_optimizer(self, stepping: Optimizer) -> None:
        self.seen.append("after")


def test_one_observer_that_fails_and_leaves_does_not_keep_others_from_being_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sessions of other tests do not report it, and it was not printed before.
    monkeypatch.setattr(guard, "_listeners", [])
    monkeypatch.setattr(guard, "_printed", set())
    # Nor do they observe.
    monkeypatch.setattr(optimizers, "_observers", {})
    optimizers.remove_unused()
    before = len(optimizer._global_optimizer_pre_hooks)
    first, second = Watches(fails=True), Watches()
    model = nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    optimizers.observe(first)
    optimizers.observe(second)
    assert len(optimizer._global_optimizer_pre_hooks) == before + 1
    sgd.step()
    sgd.step()

    assert first.seen == ["before"]
    assert second.seen == ["before", "after"] * 2
    assert "KeyError: 'ours'" in capsys.readouterr().err
    optimizers.remove_unused()  # one is still there
    assert len(optimizer._global_optimizer_pre_hooks) == before + 1
    optimizers.leave(second)
    optimizers.remove_unused()
    assert len(optimizer._global_optimizer_pre_hooks) == before
    sgd.step()
    assert len(second.seen) == 4


class Own(torch.optim.AdamW):
    """An optimizer of a program, whatever its options do."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (torch.optim.AdamW, "AdamW(foreach=None, fused=None)"),
        (lambda p: torch.optim.Adam(p, fused=True), "Adam(foreach=None, fused=True)"),
        (lambda p: torch.optim.SGD(p, lr=0.1, foreach=True), "SGD(foreach=True, fused=None)"),
        (torch.optim.RAdam, "RAdam(foreach=None)"),
        (lambda p: Own(p, lr=0.1), ""),
    ],
)
def test_an_optimizer_is_described_by_the_options_that_it_has(make: Any, expected: str) -> None:
    assert optimizers.described(make(list(nn.Linear(2, 2).parameters()))) == expected


def test_an_op_of_an_optimizer_has_it_as_its_module_and_one_that_clips_has_none() -> None:
    model = nn.Linear(4, 4)
    adam = torch.optim.AdamW(model.parameters())
    place = Place(model, Unpacked([]))
    found = []

    place.begin()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    found.append(place.module)
    handle = adam.register_step_post_hook(lambda *_: found.append(place.module))
    adam.step()
    found.append(place.module)
    place.end()

    handle.remove()
    optimizers.remove_unused()
    assert found == ["", "AdamW(foreach=None, fused=None)", ""]
