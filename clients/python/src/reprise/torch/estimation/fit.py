# SPDX-License-Identifier: Apache-2.0
"""How large the inputs of a step may be, from shapes alone.

    print(reprise.fit(model, step, make_batch, optimizer=torch.optim.AdamW, budget="20GiB"))

    within 20.0 GiB         size      peak    step           a second
    largest without a plan    41  19.8 GiB  912 ms           45 (most)
                              58  19.9 GiB  1.31 s   +1.5 %  44.3
                              81  20.0 GiB  1.93 s   +7.0 %  42
    largest with a plan      115  20.0 GiB  3.33 s  +30.1 %  34.5

`make_batch(n)` returns the inputs of size n: so many samples, or so long a sequence. The next size
that is tried is where a line through the last two peaks meets the budget, so about ten of them find
the last one that fits. They are run on fake tensors; once one is as the two before say, those that
come follow from them (capture/fitted.py), and the one that was found is run, too. For plans
there are one or two requests to the planner for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes, format_duration, format_percent
from reprise.torch.capture.fitted import fitted
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.estimation.assumed import walk, with_rooflines
from reprise.torch.estimation.fake import device_of, fake_graph
from reprise.torch.estimation.planner import asked
from reprise.torch.estimation.workspaces import held_back
from reprise.torch.meter.room import in_bytes

# The largest size that is tried.
MOST = 1 << 20
# Sizes that are told, from the largest without a plan to the largest with one.
TOLD = 5
# Sizes below the one that was found which are tried where the planner finds no plan for it.
STEPS_BACK = 3

# Share of the budget that plans leave: of what ops take inside themselves, only what is large is
# known before they have run, and a plan leaves no room by chance as a step without one does.
LEFT = 1 / 1024

Graphs = Callable[[int], CapturedGraph]


@dataclass(frozen=True, slots=True)
class Fitting:
    """A size that fits, and what its step takes. All of it is an estimate."""

    size: int
    peak_bytes: int
    step_ns: int
    is_planned: bool = False
    overhead: float = 0.0  # of the plan, as a share of the step without one

    @property
    def per_second(self) -> float:
        """The size times the steps of one second."""
        return self.size / self.step_ns * 1e9


@dataclass(frozen=True, slots=True)
class Fit:
    """Which sizes fit in a budget."""

    budget_bytes: int
    # The largest size that fits without a plan, the largest with one, and some between them; empty
    # if none fits.
    sizes: tuple[Fitting, ...]
    limit: str = ""  # what other than memory ends the sizes; empty: nothing does

    @property
    def plain(self) -> int:
        """The largest size that fits without a plan; 0 if none does."""
        return max((one.size for one in self.sizes if not one.is_planned), default=0)

    @property
    def planned(self) -> int:
        """The largest size that fits, with a plan where it needs one; 0 if none does."""
        return max((one.size for one in self.sizes), default=0)

    @property
    def fastest(self) -> int:
        """The size with the most per second, of those that were looked at; 0 if none fits."""
        found = max(self.sizes, key=lambda one: one.per_second, default=None)
        return 0 if found is None else found.size

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        rows = [
            (f"within {format_bytes(self.budget_bytes)}", "size", "peak", "step", "", "a second")
        ]
        for one in self.sizes:
            name = "largest without a plan" if one.size == self.plain else ""
            name = "largest with a plan" if one.is_planned and one.size == self.planned else name
            more = format_percent(one.overhead, sign=True) if one.is_planned else ""
            speed = f"{one.per_second:.3g}{' (most)' if one.size == self.fastest else ''}"
            took, peak = format_duration(one.step_ns), format_bytes(one.peak_bytes)
            rows.append((name, str(one.size), peak, took, more, speed))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for name, *cells, speed in rows:
            right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=False)]
            lines.append("  ".join([name.ljust(widths[0]), *right, speed]).rstrip())
        if not self.sizes:
            lines = [
                f"No size fits within {format_bytes(self.budget_bytes)}, with a plan or without."
            ]
        if self.limit:
            lines.append(f"Larger sizes: {self.limit}.")
        return "\n".join(
            [*lines, "An estimate, from shapes; times are a roofline of this machine."]
        )


def fit(
    model: nn.Module,
    step: Callable[..., Tensor],
    make_batch: Callable[[int], Any],
    *,
    budget: str | int,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None = None,
    device: str | None = None,
    start: int = 1,
) -> Fit:
    """Returns the sizes of which a step fits in the budget. `step(model, *make_batch(n))` returns
    the loss; tensors may be on the meta device. `start`: the first size that is tried. Raises
    RepriseError if the step of that size depends on values."""
    where = device_of(model, device)
    within = in_bytes(Budget(budget), torch.device(where), 0).bytes
    if within is None:
        raise RepriseError(
            f'fit: the budget "{budget}" does not say how many bytes there are; write 20GiB'
        )

    def graph(size: int) -> CapturedGraph:
        made = make_batch(size)
        inputs = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        return with_rooflines(fake_graph(model, step, inputs, optimizer, where))

    return searched(graph, within, start)


def searched(graphs: Graphs, budget_bytes: int, start: int) -> Fit:
    """Returns what fits of the steps that `graphs(size)` returns. Raises the error of the first
    one; one that comes later is the limit of the sizes."""
    sizes = _Sizes(graphs, budget_bytes)
    sizes.message(start)
    while True:
        plain = largest(sizes.plain_peak, budget_bytes, start)
        planned = largest(sizes.least_peak, sizes.for_plans, max(plain, start))
        if sizes.confirmed(planned):
            break
    tried = range(planned, max(0, planned - STEPS_BACK), -1)
    found = next((n for n in tried if sizes.fitting(n)), plain)
    ratio = (found / max(1, plain)) ** (1 / (TOLD - 1))
    told = {plain, found, *(int(max(1, plain) * ratio**i) for i in range(1, TOLD - 1))}
    fitting = [sizes.fitting(n) for n in sorted(told - {0}) if n <= found]
    return Fit(budget_bytes, tuple(filter(None, fitting)), sizes.limit)


class _Sizes:
    def __init__(self, graphs: Graphs, budget_bytes: int) -> None:
        self._graphs = graphs
        self._budget_bytes = budget_bytes
        self.for_plans = budget_bytes - int(budget_bytes * LEFT)
        self._run: dict[int, CapturedGraph] = {}  # on fake tensors
        self._follows = False  # from those that were run, what a step of another size does
        self._known: dict[int, dict[str, Any] | None] = {}
        self._fitting: dict[int, Fitting | None] = {0: None}
        self.limit = ""

    def message(self, size: int) -> dict[str, Any] | None:
        """Returns the graph of a step; None if the program has none of that size."""
        if size not in self._known:
            follows = fitted(list(self._run.items())[-3:], size) if self._follows else None
            if follows is not None:
                follows["measured_peak_bytes"] = walk(follows)[1]
            self._known[size] = self._ran(size) if follows is None else follows
        return self._known[size]

    def confirmed(self, size: int) -> bool:
        """Returns whether the step of a size that follows from others is as that says. If not, all
        that follows is forgotten."""
        if not self._follows or size == 0 or size in self._run:
            return True
        said, found = self._known[size], self._ran(size)
        if _sizes_of(said) == _sizes_of(found):
            return True
        self._follows = False
        self._known = {n: graph.message() for n, graph in self._run.items()}
        self._known[size] = found
        self._fitting = {0: None}
        return False

    def _ran(self, size: int) -> dict[str, Any] | None:
        try:
            graph = self._graphs(size)
        except RepriseError as error:
            if not self._run:
                raise
            self.limit = f"at {size}, {error}"
            return None
        last = list(self._run.items())[-2:]
        said = fitted(last, size) if len(last) == 2 and not self._follows else None
        message = graph.message()
        self._follows |= said is not None and _sizes_of(said) == _sizes_of(message)
        self._run[size] = graph
        return message

    def plain_peak(self, size: int) -> int | None:
        message = self.message(size)
        return None if message is None else _with_unknown(message, message["measured_peak_bytes"])

    def least_peak(self, size: int) -> int | None:
        """Returns the peak of a step under the plan that needs least, in bytes."""
        message = self.message(size)
        if message is None or message["static_bytes"] > self._budget_bytes:
            return None
        plan, why, refused = asked(message, str(Budget.least()))
        if plan is None and not refused:
            raise RepriseError(why)
        peak = message["measured_peak_bytes"] if plan is None else plan.peak_bytes
        return _with_unknown(message, peak)

    def fitting(self, size: int) -> Fitting | None:
        """Returns what a step takes, under a plan if it needs one; None if none fits."""
        if size not in self._fitting:
            self._fitting[size] = self._looked_at(size)
        return self._fitting[size]

    def _looked_at(self, size: int) -> Fitting | None:
        message = self.message(size)
        if message is None:
            return None
        peak, took = message["measured_peak_bytes"], message["measured_step_ns"]
        if _with_unknown(message, peak) <= self._budget_bytes:
            return Fitting(size, peak, took)
        within = self.for_plans - held_back(message, self.for_plans)
        plan, _, _ = asked(message, str(within))
        if plan is None:
            return None
        with_plan = int(took * (1 + plan.overhead))
        return Fitting(size, plan.peak_bytes, with_plan, is_planned=True, overhead=plan.overhead)


def _with_unknown(message: dict[str, Any], peak_bytes: int) -> int:
    return peak_bytes + held_back(message, peak_bytes)


def _sizes_of(message: dict[str, Any] | None) -> list[int] | None:
    """Returns the bytes of all storages of a step, in order, and those that its ops take inside
    themselves, for which libraries compute small inputs in another way; None if there is no such
    step."""
    if message is None:
        return None
    inside = [op["workspace_bytes"] for op in message["ops"]]
    return [message["static_bytes"], *(s["bytes"] for s in message["storages"]), *inside]


def largest(needs: Callable[[int], int | None], budget_bytes: int, start: int) -> int:
    """Returns the largest size up to MOST whose bytes, which grow with it, are within the budget; 0
    if none is. `needs`: None where there is no such size."""
    good, bad = 0, MOST + 1
    seen: list[tuple[int, int]] = []  # sizes and their bytes, the last two
    size, tries = min(start, MOST), 0
    while bad - good > 1:
        size = min(max(size, good + 1), bad - 1)
        found = needs(size)
        if found is not None and found <= budget_bytes:
            good = size
        else:
            bad = size
        if found is not None:
            seen = [*seen[-1:], (size, found)]
        tries += 1
        # Every third time the middle, for bytes that are far from a line.
        middle = size * 2 if bad > MOST else (good + bad) // 2
        size = middle if tries % 3 == 0 else _on_the_line(seen, budget_bytes, middle)
    return good


def _on_the_line(seen: list[tuple[int, int]], budget_bytes: int, otherwise: int) -> int:
    """Returns the size at which the line through the last two meets the budget."""
    if len(seen) < 2:
        return otherwise
    (a, at_a), (b, at_b) = seen
    return b + (budget_bytes - at_b) * (b - a) // (at_b - at_a) if at_b != at_a else otherwise
