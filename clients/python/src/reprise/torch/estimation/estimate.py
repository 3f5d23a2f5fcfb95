# SPDX-License-Identifier: Apache-2.0
"""Estimates whether a model fits, before any of its memory is allocated.

    est = reprise.estimate(model, step, batch, optimizer=torch.optim.AdamW, budget="20GiB")
    print(est)           # the peak, the peak and overhead with a plan, or the batch that would fit

`step(model, *inputs)` returns the loss of one step. Model and inputs may be on the meta device:
only their sizes matter. Everything runs on fake tensors (fake.py). Op times come from a roofline
model of this machine (assumed.py), and what ops take inside themselves from rules (workspaces.py);
with both the planner answers as it does for a real job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from reprise.base.budget import Budget
from reprise.base.notebook import page
from reprise.base.units import format_bytes, format_percent
from reprise.torch.estimation.assumed import walk, with_rooflines
from reprise.torch.estimation.fake import device_of, fake_graph, resized
from reprise.torch.estimation.fit import fit
from reprise.torch.estimation.planner import asked

# Modules that a notebook shows.
SHOWN = 12
# Lists to which every predicted peak is appended (for the pytest mark).
_listeners: list[list[int]] = []


def recorded_peaks() -> list[list[int]]:
    """Returns the listeners: append a list to it, and every predicted peak is appended to that
    list."""
    return _listeners


@dataclass(slots=True)
class Estimate:
    """What one step needs. Bytes are those of tensors, plus the workspaces that are assumed."""

    static_bytes: int
    peak_bytes: int
    step_ns: int
    budget: Budget | None
    budget_bytes: int = 0
    planned_peak_bytes: int = 0
    overhead: float | None = None  # None if no budget was given or no plan fits
    why: str = ""
    by_module: dict[str, int] = field(default_factory=dict)  # bytes alive at the peak
    # If no plan fits: the largest first dimension of the inputs that would fit; 0 if none would.
    fitting_batch: int | None = None
    # Bytes alive at each op, under the plan where there is one.
    curve: Sequence[int] = ()

    def _repr_html_(self) -> str:
        figures = {
            "peak": format_bytes(self.peak_bytes),
            "static": format_bytes(self.static_bytes),
        }
        if self.overhead is not None:
            figures["peak with a plan"] = format_bytes(self.planned_peak_bytes)
            figures["added time"] = format_percent(self.overhead, sign=True)
        rows = [(format_bytes(n), name or "(none)") for name, n in self.by_module.items()][:SHOWN]
        return page(str(self), figures, self.curve, self.budget_bytes, rows)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the budget, with or without a plan; None if no budget was
        given."""
        if self.budget is None:
            return None
        return self.overhead is not None

    def __str__(self) -> str:
        text = (
            f"Peak {format_bytes(self.peak_bytes)}, {format_bytes(self.static_bytes)} of it static"
        )
        if self.budget is None:
            return text + "."
        if self.overhead is None:
            would = "" if not self.fitting_batch else f" A batch of {self.fitting_batch} would fit."
            return f"{text}. {self.why}{would}"
        return (
            f"{text}. In {format_bytes(self.budget_bytes)} it fits with a peak of "
            f"{format_bytes(self.planned_peak_bytes)}, {format_percent(self.overhead, sign=True)}."
        )


def estimate(
    model: nn.Module,
    step: Callable[..., Tensor],
    *inputs: Any,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
    budget: str | int | None = None,
    device: str | None = None,
) -> Estimate:
    """Predicts one training step. `device` is where it will run, such as "cuda"; by default the
    model's device, or the CPU for a model on the meta device. Raises RepriseError if the step
    depends on values, not only on sizes."""
    checked = None if budget is None else Budget(budget)
    where = device_of(model, device)
    message = with_rooflines(fake_graph(model, step, inputs, optimizer, where)).message()
    live, peak, curve = walk(message)
    made = Estimate(
        static_bytes=message["static_bytes"],
        peak_bytes=peak,
        step_ns=message["measured_step_ns"],
        budget=checked,
        by_module=_by_module(message, live),
        curve=curve,
    )
    for listener in _listeners:
        listener.append(peak)
    if checked is None:
        return made
    plan, made.why, refused = asked(message, checked)
    if plan is not None:
        made.budget_bytes, made.planned_peak_bytes = plan.budget_bytes, plan.peak_bytes
        made.overhead, made.curve = plan.overhead, plan.predicted_bytes
        made.why = plan.sentence

    first = next((x for x in inputs if isinstance(x, Tensor) and x.dim()), None)
    if refused and first is not None and not checked.is_share:
        made.fitting_batch = fit(
            model,
            step,
            lambda size: resized(inputs, size),
            budget=checked,
            optimizer=optimizer,
            device=where,
            start=first.shape[0],
        ).planned
    return made


def _by_module(message: dict[str, Any], alive: list[int]) -> dict[str, int]:
    """Returns the bytes of the given storages by the module that makes them, largest first."""
    makers = {s: op["module"] for op in message["ops"] for s in op["writes"]}
    total: Counter[str] = Counter()
    for s in alive:
        total[makers.get(s, "")] += message["storages"][s]["bytes"]
    return dict(total.most_common())
