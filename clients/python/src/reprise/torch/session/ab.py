# SPDX-License-Identifier: Apache-2.0
"""Compares a step with and without a plan before a long run is started.

    reprise.check(model, step)               # RepriseError when a gradient differs

Arms the model, runs `step` until one step has been planned and verified, and puts everything back:
parameters, buffers, gradients, optimizer state, generators. The data `step` takes from an iterator
is gone, though.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from reprise.agent.received import InfeasibleBudget
from reprise.base.errors import RepriseError
from reprise.torch.rerun.snapshot import Generators

if TYPE_CHECKING:
    from reprise.torch.training.report import Report


STEPS = 8


def check(model: nn.Module, step: Callable[[], Any], budget: str | int | None = "0.5x") -> Report:
    """Runs `step` some times. RepriseError: gradients differ, or no plan came; InfeasibleBudget:
    none fits. The report says what was compared."""
    from reprise.torch.session import api
    from reprise.torch.training import armed

    if armed.current(model) is not None:
        raise RepriseError("this model is already armed: call reprise.remove(model) first")
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    with torch.no_grad():
        before = {key: t.detach().clone() for key, t in tensors.items()}
        grads = {key: None if t.grad is None else t.grad.clone() for key, t in tensors.items()}
    generators = Generators()
    states: dict[Optimizer, Any] = {}

    def remember(optimizer: Optimizer, *_: Any) -> None:
        if optimizer not in states:
            states[optimizer] = copy.deepcopy(optimizer.state_dict())

    handle = register_optimizer_step_pre_hook(remember)
    try:
        how: dict[str, Any] = {"first": "plain", "verify": "gradients"}
        api.auto(model, budget=budget, verify_every=1, warmup=2, **how)
        for _ in range(STEPS):
            step()
            if api.report(model).checks:
                break
        report = api.report(model)
        loop = armed.current(model)
        smallest = loop.job.measured.smallest_budget if loop is not None else None
    finally:
        handle.remove()
        api.remove(model)
        with torch.no_grad():
            for key, tensor in tensors.items():
                tensor.copy_(before[key])
                tensor.grad = grads[key]
        for optimizer, state in states.items():
            optimizer.load_state_dict(state)
        generators.restore()
    if report.failed_checks:
        raise RepriseError(report.why or report.sentence)
    if not report.checks:
        if smallest:
            raise InfeasibleBudget(report.why, smallest)
        raise RepriseError(f"no planned step was checked in {STEPS} steps: {report.why}")
    return report
