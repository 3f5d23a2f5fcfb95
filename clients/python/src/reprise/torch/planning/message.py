# SPDX-License-Identifier: Apache-2.0
"""What a job is told that no plan fits.

on_the_host(rung, budget, smallest)     # what would fit
unsupported(step)                       # what in the step cannot be planned yet
"""

from __future__ import annotations

from reprise.base.budget import Budget
from reprise.base.units import format_bytes
from reprise.torch.capture.captured import CapturedStep
from reprise.torch.ladder.rung import Rung

ON_THE_HOST = "Saved tensors stay in host memory, and steps are slow"


def on_the_host(rung: Rung, budget: Budget | None, smallest: int) -> str:
    """Returns what a job is told that neither fits nor has a plan. `smallest`: the smallest budget
    that is not ruled out, in bytes."""
    graph = rung.graph
    text = f"{ON_THE_HOST}. What would fit: a budget of {format_bytes(smallest)} or more"
    batch = next((shape[0] for shape in rung.key.shapes if shape), 0)
    allowed = None if budget is None else budget.bytes
    if allowed is None:  # a share of what the step needs
        return text
    dynamic = smallest - graph.static_bytes
    fits = int(batch * (allowed - graph.static_bytes) / dynamic) if dynamic > 0 else 0
    if 0 < fits < batch:
        text += f", or a batch of about {fits} instead of {batch}"
    return text


def unsupported(step: CapturedStep) -> str:
    """Returns what in a refused step cannot be planned yet; empty if nothing of the kind is
    known."""
    if not step.filled_by:
        return ""
    return (
        f" Not supported yet: running ops again whose parameters {step.filled_by} writes within "
        "the step. What they make is kept"
    )
