# SPDX-License-Identifier: Apache-2.0
"""Arms models in the test's own process, and removes the sessions when the test ends."""

from __future__ import annotations

from typing import Any

from jobs import start_meter
from local_agent import LocalAgent
from torch import nn

from reprise.base.budget import Budget
from reprise.torch.job.job import Options
from reprise.torch.session.session import Session
from reprise.torch.tape.costs import Costs
from reprise.torch.training import armed

__all__ = ["arm", "remove_all", "sessions"]

sessions: list[Session] = []


def arm(model: nn.Module, agent: LocalAgent | None = None, **options: Any) -> Session:
    """Arms a model as `reprise.auto` does, but for its first steps, which are plain: tests count
    what follows from them. Those of the start say otherwise."""
    settings: dict[str, Any] = {"budget": "0.5x", "verify_every": 3, "warmup": 2, "name": "test"}
    settings["first"] = "plain"
    others: dict[str, Any] = {"wait_s": 1.0, "costs": Costs(0, 0, 1000)}
    others.update({name: options.pop(name) for name in tuple(options) if name in others})
    settings.update(options)
    budget = settings.pop("budget")
    given = Options(budget=None if budget is None else Budget(budget), **settings)
    known: Any = agent or LocalAgent()
    session = Session(model, agent=known, meter=start_meter(), options=given, **others)
    sessions.append(session)
    armed.add(model, session)
    return session


def remove_all() -> None:
    """Removes every session that a test has armed."""
    while sessions:
        sessions.pop().remove()
