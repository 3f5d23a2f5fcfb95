# SPDX-License-Identifier: Apache-2.0
"""Small training jobs with agent, daemon and planner, for faults.py.

Importing this adds them to `fault_jobs.KINDS`.
"""

from __future__ import annotations

import os

from fault_jobs import Job, finished, kind, net, train

import reprise
from reprise.torch.internals.entry import otherwise
from reprise.torch.session import attach

__all__: list[str] = []


def with_budget(budget: str | int | None, armed: bool, steps: int = 9) -> Job:
    """Trains with `reprise.auto` and everything that it starts."""
    model = net(2)

    def job() -> str:
        os.environ["REPRISE_FAST"] = "1"
        if armed:
            reprise.auto(model, budget=budget, verify_every=4, warmup=2)
        found = train(model, steps, rows=lambda step: 64)
        finished(model)
        reprise.remove(model)
        return found

    return job


@kind
def with_a_daemon(armed: bool) -> Job:
    """`reprise.auto` and all that it starts: agent, daemon, planner, costs."""
    return with_budget("0.9x", armed)


@kind
def half(armed: bool) -> Job:
    """The same with a budget that is too small for any plan: 0.5x."""
    return with_budget("0.5x", armed, steps=6)


@kind
def in_bytes(armed: bool) -> Job:
    """The same with a budget in bytes."""
    return with_budget(44_000, armed)


@kind
def of_the_device(armed: bool) -> Job:
    """The same with a percentage of the device's memory: 90%."""
    return with_budget("90%", armed)


@kind
def that_fits(armed: bool) -> Job:
    """The same with the free memory as its budget: fit."""
    return with_budget("fit", armed)


@kind
def captured(armed: bool) -> Job:
    """Without a budget: one step is captured for the page."""
    return with_budget(None, armed)


@kind
def unaware(armed: bool) -> Job:
    """A program that does not know of Reprise, under `reprise run`."""
    model = net(2)

    def job() -> str:
        os.environ["REPRISE_BUDGET"] = "0.9x"
        if armed:
            otherwise(lambda: None)(attach.attach)()  # as the package's sitecustomize does
        return train(model, 8, rows=lambda step: 64)

    return job
