# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits, before any of its memory is allocated.

    est = reprise.estimate(model, step, batch, optimizer=torch.optim.AdamW, budget="20GiB")
    print(est)           # peak, what a plan makes of it, at which overhead; or which batch fits
    est.largest_batch()  # with the plan

`step(model, *inputs)` returns the loss of one step. Model and inputs may live on the meta device:
sizes are all that counts. Everything runs on fake tensors, twice: once so that gradients and
optimizer state exist, and once captured. Times are a roofline of what this machine (or the named
device) can multiply and move; with them the planner answers as for a real job. Workspaces inside
ops are not known beforehand: a margin is added for them (`MARGIN`).
"""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from reprise import daemon
from reprise.agent import Agent
from reprise.errors import RepriseError
from reprise.plan import Plan
from reprise.torch.ask.once import capture_step
from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.ground.ops import OpKind
from reprise.units import check_budget, format_bytes, format_percent

__all__ = [
    "Estimate",
    "NoMeter",
    "ask",
    "estimate",
    "faked",
    "recorded_peaks",
    "roofline_ns",
    "with_rooflines",
]

# Convolutions and attention take some memory for themselves.
MARGIN = 0.05
WAIT_S = 60.0

# Peaks that were predicted while somebody listened (the pytest mark).
_listeners: list[list[int]] = []


def recorded_peaks() -> list[list[int]]:
    """Append a list here to be told every predicted peak."""
    return _listeners


@dataclass(slots=True)
class Estimate:
    """What one step needs. Bytes are those of tensors, the margin for workspaces included."""

    static_bytes: int
    peak_bytes: int
    step_ns: int
    budget: str | None
    budget_bytes: int = 0
    planned_peak_bytes: int = 0
    overhead: float | None = None  # None: no plan was asked for, or none came
    why: str = ""
    by_module: dict[str, int] = field(default_factory=dict)  # alive at the peak
    # Where no plan fits: the largest first dimension of the inputs that would; 0: none.
    fitting_batch: int | None = None
    _again: Callable[[int], tuple[int, bool]] | None = None
    _batch: int = 0

    @property
    def fits(self) -> bool | None:
        """With a plan or without; None: no budget was given."""
        if self.budget is None:
            return None
        return self.overhead is not None

    def largest_batch(self, most: int = 1 << 16) -> int:
        """The largest first dimension of the inputs that fits in the budget with a plan; 0: none
        does. Doubles, then halves: some ten questions to the planner."""
        if self._again is None or self.budget is None or self.budget.endswith("x"):
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
    """Predicts one training step. `device`: where it will run, "cuda" say; default: the model's,
    or the CPU for one on the meta device. RepriseError: the step needs values, not only sizes."""
    checked = None if budget is None else check_budget(budget)
    graph = _fake_graph(model, step, inputs, optimizer, device)
    message = _message(graph)
    live, peak, at = _walk(message)
    made = Estimate(
        static_bytes=message["static_bytes"],
        peak_bytes=peak,
        step_ns=message["measured_step_ns"],
        budget=checked,
        by_module=_by_module(message, live),
    )
    del at
    for listener in _listeners:
        listener.append(peak)
    if checked is None:
        return made
    plan, made.why, refused = _asked(message, checked)
    if plan is not None:
        made.budget_bytes, made.planned_peak_bytes = plan.budget_bytes, plan.peak_bytes
        made.overhead = plan.overhead
        made.why = plan.sentence

    def again(size: int) -> tuple[int, bool]:
        other = _message(_fake_graph(model, step, _resized(inputs, size), optimizer, device))
        found, _ = ask(other, checked)
        return size, found is not None

    first = next((x for x in inputs if isinstance(x, Tensor) and x.dim()), None)
    made._again, made._batch = again, 0 if first is None else first.shape[0]
    if refused and made._batch and not checked.endswith("x"):
        made.fitting_batch = made.largest_batch(made._batch - 1)
    return made


class NoMeter:
    """Fake tensors allocate nothing; peaks come from the graph."""

    name, exact, why, has_events = "none", False, "nothing is allocated", False

    def start(self, baseline_bytes: int) -> None: ...
    def stop(self) -> None: ...
    def reset_peak(self) -> None: ...
    def events_begin(self, agent: Agent) -> None: ...
    def events_end(self) -> None: ...
    def live(self) -> int:
        return 0

    def peak(self) -> int:
        return 0


def _fake_graph(
    model: nn.Module,
    step: Callable[..., Tensor],
    inputs: tuple[Any, ...],
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | None,
    device: str | None,
) -> CapturedGraph:
    state = torch.get_rng_state()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            where = device or next((str(p.device) for p in model.parameters()), "cpu")
            where = "cpu" if where == "meta" else where
            fake = faked(model, mode, where)
            batch = [
                torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=where)
                if isinstance(x, Tensor)
                else x
                for x in inputs
            ]
            made = optimizer(fake.parameters()) if optimizer is not None else None

            def whole() -> None:
                if made is not None:
                    made.zero_grad()
                else:
                    fake.zero_grad()
                step(fake, *batch).backward()
                if made is not None:
                    made.step()

            whole()

            def alive() -> list[Tensor]:
                found = [*fake.parameters(), *fake.buffers(), *filter(_is_tensor, batch)]
                found += [p.grad for p in fake.parameters() if p.grad is not None]
                for values in made.state.values() if made is not None else ():
                    found += filter(_is_tensor, values.values())
                return found

            total = sum({t.untyped_storage()._cdata: t.nbytes for t in alive()}.values())
            meter: Any = NoMeter()
            graph = capture_step(fake, whole, meter, alive)
    except RepriseError:
        raise
    except Exception as error:
        raise RepriseError(
            f"the step cannot be estimated from sizes alone ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:200] if str(error) else 'no message'}); "
            "train one step for real with reprise.auto"
        ) from error
    finally:
        torch.set_rng_state(state)
    gone = sum(s.bytes for s in graph.storages if s.prior)
    object.__setattr__(graph, "static_bytes", max(0, total - gone))
    return graph


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def with_rooflines(graph: CapturedGraph) -> CapturedGraph:
    """The same graph, its ops with the times and workspaces that are assumed here."""
    message = _message(graph)
    for op, made in zip(graph.step.ops, message["ops"], strict=True):
        op.time_ns, op.workspace_bytes = made["time_ns"], made["workspace_bytes"]
    figures = {key: message[key] for key in ("measured_step_ns", "measured_peak_bytes")}
    return replace(graph, **figures)


def faked(model: nn.Module, mode: FakeTensorMode, device: str) -> nn.Module:
    """A copy of the model without memory. A shared parameter stays shared."""
    memo: dict[int, Any] = {}
    for tensor in {id(t): t for t in (*model.parameters(), *model.buffers())}.values():
        with mode:
            fake = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            )
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = fake
    return copy.deepcopy(model, memo)


def _resized(inputs: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    return tuple(
        torch.empty((size, *x.shape[1:]), dtype=x.dtype, device="meta")
        if isinstance(x, Tensor) and x.dim()
        else x
        for x in inputs
    )


# ---- Bytes and times ------------------------------------------------------------


def _message(graph: CapturedGraph) -> dict[str, Any]:
    """The step graph with times, and a workspace for what ops take inside."""
    message = graph.message()
    sizes = {s["id"]: s["bytes"] for s in message["storages"]}
    total = 0
    for op, made in zip(message["ops"], graph.step.ops, strict=True):
        if made.kind == OpKind.VIEW or made.func is None:
            op["time_ns"] = 0
            continue
        touched = sum(sizes.get(s, 0) for s in (*op["reads"], *op["writes"]))
        op["time_ns"] = roofline_ns(op["name"], touched)
        multiplies = _multiplies(op["name"])
        op["workspace_bytes"] = int(
            MARGIN * sum(sizes.get(s, 0) for s in op["writes"]) if multiplies else 0
        )
        total += op["time_ns"]
    message["measured_step_ns"] = total
    _, peak, _ = _walk(message)
    message["measured_peak_bytes"] = peak
    return message


def roofline_ns(name: str, touched_bytes: int) -> int:
    """How long an op takes that reads and writes so many bytes. A multiplication does some hundred
    operations per element it touches."""
    flops_per_ns, bytes_per_ns = _speeds()
    work = touched_bytes / 4 * (100 if _multiplies(name) else 1)
    return int(1000 + max(touched_bytes / bytes_per_ns, work / flops_per_ns))


def _multiplies(name: str) -> bool:
    return any(word in name for word in ("mm", "conv", "attention", "linear"))


@cache
def _speeds() -> tuple[float, float]:
    """Operations and bytes per ns of this machine."""
    a = torch.ones(256, 256)
    begin = time.perf_counter_ns()
    for _ in range(4):
        torch.mm(a, a)
    multiply = max(1, time.perf_counter_ns() - begin) / 4
    b = torch.ones(1 << 20)
    c = torch.empty_like(b)
    begin = time.perf_counter_ns()
    for _ in range(4):
        c.copy_(b)
    move = max(1, time.perf_counter_ns() - begin) / 4
    return 2 * 256**3 / multiply, 2 * b.nbytes / move


def _walk(message: dict[str, Any]) -> tuple[list[int], int, int]:
    """Storages alive at the peak, the peak, and the op it is at: every storage from the op that
    makes it to its last reader or release."""
    ops = message["ops"]
    last = {s["id"]: s["release_op"] for s in message["storages"]}
    for number, op in enumerate(ops):
        for s in op["reads"]:
            last[s] = max(last[s], number)
    for s in message["required"]:
        last[s] = len(ops)
    sizes = {s["id"]: s["bytes"] for s in message["storages"]}
    alive: dict[int, int] = {}
    live, peak, at, kept = message["static_bytes"], 0, 0, []
    for number, op in enumerate(ops):
        for s in op["writes"]:
            alive[s] = sizes[s]
            live += sizes[s]
        if live + op["workspace_bytes"] > peak:
            peak, at, kept = live + op["workspace_bytes"], number, list(alive)
        for s in [s for s in alive if last[s] <= number]:
            live -= alive.pop(s)
    return kept, peak, at


def _by_module(message: dict[str, Any], alive: list[int]) -> dict[str, int]:
    makers = {s: op["module"] for op in message["ops"] for s in op["writes"]}
    total: Counter[str] = Counter()
    for s in alive:
        total[makers.get(s, "")] += message["storages"][s]["bytes"]
    return dict(total.most_common())


def ask(
    message: dict[str, Any], budget: str, capabilities: str = "tape:seeded_ok=1"
) -> tuple[Plan | None, str]:
    """A plan from the daemon, or why there is none."""
    plan, why, _ = _asked(message, budget, capabilities)
    return plan, why


def _asked(
    message: dict[str, Any], budget: str, capabilities: str = "tape:seeded_ok=1"
) -> tuple[Plan | None, str, bool]:
    """And whether the planner found that nothing fits."""
    collector = daemon.ensure()
    if collector.socket is None:
        return None, collector.why, False
    agent = Agent.start(labels={"name": "estimate"}, socket=collector.socket)
    text = json.dumps({**message, "name": f"{message['name']}, {budget}"}).encode()
    graph = agent.submit_graph(text, budget, capabilities, message["static_bytes"])
    if graph is None:
        return None, agent.why, False
    reply = agent.wait_plan(graph, timeout_s=WAIT_S)
    if reply.plan is not None and reply.plan.feasible:
        return reply.plan, "", False
    why = reply.why or (reply.plan.sentence if reply.plan else "no plan came in time")
    return None, why, reply.kind == "refused" or reply.plan is not None
