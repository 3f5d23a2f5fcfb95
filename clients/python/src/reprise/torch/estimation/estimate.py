# SPDX-License-Identifier: Apache-2.0
"""Estimates whether a model fits, before any of its memory is allocated.

    est = reprise.estimate(model, step, batch, optimizer=torch.optim.AdamW, budget="20GiB")
    print(est)           # the peak, the peak and overhead with a plan, or the batch that would fit
    est.largest_batch()  # the largest batch that fits with a plan

`step(model, *inputs)` returns the loss of one step. Model and inputs may be on the meta device:
only their sizes matter. Everything runs on fake tensors (fake.py). Op times come from a roofline
model of this machine, and workspaces inside ops from a margin (assumed.py); with both the planner
answers as it does for a real job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_percent
from reprise.torch.estimation.assumed import walk, with_assumed
from reprise.torch.estimation.fake import device_of, fake_graph, resized
from reprise.torch.estimation.planner import ask, asked

__all__ = ["Estimate", "estimate", "recorded_peaks"]

# Lists to which every predicted peak is appended (for the pytest mark).
_listeners: list[list[int]] = []


def recorded_peaks() -> list[list[int]]:
    """Returns the listeners: append a list to it, and every predicted peak is appended to that
    list."""
    return _listeners


@dataclass(slots=True)
class Estimate:
    """What one step needs. Bytes are those of tensors, plus the margin for workspaces."""

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
    _again: Callable[[int], tuple[int, bool]] | None = None
    _batch: int = 0

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the budget, with or without a plan; None if no budget was
        given."""
        if self.budget is None:
            return None
        return self.overhead is not None

    def largest_batch(self, most: int = 1 << 16) -> int:
        """Returns the largest first dimension of the inputs that fits in the budget with a plan; 0
        if none does. Searches by doubling, then halving, with about ten requests to the planner."""
        if self._again is None or self.budget is None or self.budget.is_share:
            raise RepriseError("largest_batch: needs a budget in bytes, as 20GiB")
        good, bad = 0, most + 1
        size = max(1, self._batch)
        while size < bad:
            if not self._again(size)[1]:
                bad = size
                break
            good, size = size, size * 2
        while bad - good > max(1, good // 16):
            middle = (good + bad) // 2
            if self._again(middle)[1]:
                good = middle
            else:
                bad = middle
        return good

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
    message = with_assumed(fake_graph(model, step, inputs, optimizer, where), where)
    live, peak = walk(message)
    made = Estimate(
        static_bytes=message["static_bytes"],
        peak_bytes=peak,
        step_ns=message["measured_step_ns"],
        budget=checked,
        by_module=_by_module(message, live),
    )
    for listener in _listeners:
        listener.append(peak)
    if checked is None:
        return made
    plan, made.why, refused = asked(message, checked)
    if plan is not None:
        made.budget_bytes, made.planned_peak_bytes = plan.budget_bytes, plan.peak_bytes
        made.overhead = plan.overhead
        made.why = plan.sentence

    def again(size: int) -> tuple[int, bool]:
        graph = fake_graph(model, step, resized(inputs, size), optimizer, where)
        other = with_assumed(graph, where)
        found, _ = ask(other, checked)
        return size, found is not None

    first = next((x for x in inputs if isinstance(x, Tensor) and x.dim()), None)
    made._again, made._batch = again, 0 if first is None else first.shape[0]
    if refused and made._batch and not checked.is_share:
        made.fitting_batch = made.largest_batch(made._batch - 1)
    return made


def _by_module(message: dict[str, Any], alive: list[int]) -> dict[str, int]:
    """Returns the bytes of the given storages by the module that makes them, largest first."""
    makers = {s: op["module"] for op in message["ops"] for s in op["writes"]}
    total: Counter[str] = Counter()
    for s in alive:
        total[makers.get(s, "")] += message["storages"][s]["bytes"]
    return dict(total.most_common())
