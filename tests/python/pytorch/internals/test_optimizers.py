# SPDX-License-Identifier: Apache-2.0
"""All models of a process share one pair of hooks of torch's optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, optimizer

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
