# SPDX-License-Identifier: Apache-2.0
"""Memory runs out after the first step and before the first plan, as when the optimizer has made
its state; or under a plan in the program's own code, as in its loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from arming import arm, remove_all
from local_agent import LocalAgent
from out_of_memory import Failing, made, run, same

from reprise.torch.policy.state import Stage
from reprise.torch.recovery import startup
from reprise.torch.session import session as sessions

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _removed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(startup, "room_on", lambda _: None)  # not known: any step may run out
    Failing.backwards = 0
    yield
    remove_all()
    Failing.backwards = 0


def test_running_out_of_memory_in_the_loss_tightens_the_next_plan_and_is_logged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, agent = made(), LocalAgent()
    asked: list[str] = []
    submit = agent.submit_graph

    def submitted(text: bytes, budget: str, *rest: Any, **more: Any) -> int:
        asked.append(budget)
        return submit(text, budget, *rest, **more)

    agent.submit_graph = submitted  # type: ignore[method-assign]
    failing = [6]

    class Loss(torch.autograd.Function):
        """Between forward and backward, as the allocator of a GPU tells of it."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            failing[0] -= 1
            if failing[0] == 0:
                sessions._ran_out(None, 20 << 20)
                raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad

    rand = torch.rand
    # What `run` calls between forward and backward.
    monkeypatch.setattr(torch, "rand", lambda *a: Loss.apply(rand(*a)))
    expected = run(made())  # statistics of the failed step too
    failing[0] = 6
    session = arm(model, agent)

    found = run(model)

    assert same(found, expected)
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.mismatched_steps == 0
    assert session.job.measured.planned_steps == 3  # under the tighter one
    plan = session.plan
    assert plan is not None
    assert asked[0] == "0.5x"
    assert asked[1].isdigit()
    said = capsys.readouterr().err
    assert "out of memory in the program's code beside the model (20.0 MiB were asked for)" in said
    assert "the next step runs under a tighter plan" in said
