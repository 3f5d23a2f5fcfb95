# SPDX-License-Identifier: Apache-2.0
"""What is not the program's fault: memory runs out, a plan is found wrong. And what a step leaves
behind: its records, and nothing else."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from arming import arm
from local_agent import LocalAgent
from loops import deep, train
from nets import RandomNet
from torch import Tensor, nn
from torch.nn import functional as F

import reprise
from reprise.torch.check.verify import Check
from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")


def test_out_of_memory_in_a_planned_forward_is_survived(scarce: None) -> None:
    agent = LocalAgent()

    class Hungry(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.fail = deep(), deep(), 0

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if self.fail:
                self.fail -= 1
                raise torch.OutOfMemoryError("too much")
            return self.last(x)

    model = Hungry()
    session = arm(model, agent, verify_every=0)
    train(model, 6)

    model.fail = 1
    expected = Hungry()
    expected.load_state_dict(model.state_dict())
    state = torch.get_rng_state()
    found = train(model, 3)
    model.fail = 2  # the second try fails, too: it is the program's
    with pytest.raises(torch.OutOfMemoryError):
        train(model, 1)
    torch.set_rng_state(state)

    assert train(expected, 3) == found
    assert agent.ooms == 3
    assert any(s["flags"] & 4 for s in agent.steps)
    assert agent.steps[6]["plan_id"] == 2  # the step that ran out was taken again under it
    assert agent.reserves[1] > agent.reserves[0]  # asked for less
    assert session.job.stage is Stage.PLANNED


def test_ops_of_traced_steps_are_recorded_in_pairs() -> None:
    agent = LocalAgent()
    model = RandomNet(2)
    arm(model, agent)

    train(model, 7)

    # A captured step and the second planned one: forward, backward, replays, optimizer.
    assert len(agent.ops) == len(set(agent.ops)) > 2 * len(agent.graphs[0]["ops"]) * 0.8
    assert sorted(agent.ops) == sorted(agent.ended)


def test_a_plan_that_was_found_wrong_is_quarantined_for_later_jobs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = LocalAgent()
    model = RandomNet(3)
    monkeypatch.setattr(Check, "_differs", lambda *_: True)  # and the same each time
    arm(model, agent, verify="gradients")
    train(model, 6)
    again = RandomNet(3)
    second = arm(again, LocalAgent())  # the same plan once more
    agent = second.job.agent  # type: ignore[assignment]

    train(again, 6)

    (bundle,) = (tmp_path / "reprise" / "quarantine").iterdir()
    assert {f.name for f in bundle.iterdir()} == {"graph.json", "plan.json", "report.json"}
    assert "found earlier to change gradients" in agent.states[-1][2]
    assert second.job.measured.planned_steps == 0


def test_nothing_of_a_planned_step_outlives_it() -> None:
    model = RandomNet(4)
    session = arm(model, verify_every=0)
    train(model, 8)
    gc.collect()
    before = session.job.meter.live()

    train(model, 3)
    gc.collect()

    assert session.job.meter.live() - before <= 4 * 4096
    assert F.relu(torch.ones(1)) == 1
    assert reprise.report(model).planned_steps > 4
