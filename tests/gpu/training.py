# SPDX-License-Identifier: Apache-2.0
"""Trains a job for some steps and says what they took: time by events, bytes by the allocator and
by the driver, the weights at the end, and what Reprise announced beside it."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import stored_graph
import torch
from runner import Figures, Here
from torch import Tensor, nn

# Steps whose median and largest peak are reported: the last ones.
TAIL = 10


class Job(Protocol):
    model: nn.Module

    def step(self, number: int) -> Tensor: ...


def trained(
    here: Here,
    job: Job,
    steps: int,
    *,
    budget: Any = "plain",
    then: Callable[[], None] | None = None,
) -> Figures:
    """Trains, plainly or under Reprise (`budget`; None: only observed), and says all figures.
    `then`: what the program does once its model is armed, before the first step."""
    import reprise

    planned, since_ns = budget != "plain", time.time_ns()
    if planned:
        reprise.auto(job.model, budget=budget, name=f"{here.block} {here.row}")
    if then is not None:
        then()
    began = time.perf_counter()
    events, host, losses = [], [], []
    peaks: dict[str, list[int]] = {"requested": [], "allocated": [], "reserved": []}
    until_plan = None
    for number in range(steps):
        torch.cuda.reset_peak_memory_stats()
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cpu = time.perf_counter()
        pair[0].record()
        losses.append(job.step(number))
        pair[1].record()
        host.append(time.perf_counter() - cpu)
        events.append(pair)
        stats = torch.cuda.memory_stats()
        for kind, seen in peaks.items():
            seen.append(int(stats.get(f"{kind}_bytes.all.peak", 0)))
        if planned and until_plan is None and reprise.report(job.model).planned_steps:
            until_plan = number, time.perf_counter() - began
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in events]
    tail = max(1, min(TAIL, steps // 2))
    free, total = torch.cuda.mem_get_info()
    figures: Figures = {
        "step_ms": statistics.median(times[-tail:]),
        "host_ms": statistics.median(host[-tail:]) * 1e3,
        **{kind: max(seen[-tail:]) for kind, seen in peaks.items()},
        "driver": total - free,
        "first_steps": max(peaks["requested"][:-tail]),
        "requested_by_step": peaks["requested"],
        "reserved_by_step": peaks["reserved"],
        "losses": [loss.item().hex() for loss in losses],
        "weights": digest(job.model),
    }
    here.say(**figures)
    if planned:
        more = announced(reprise.report(job.model), until_plan) | op_times(here, since_ns)
        here.say(**more)
        figures |= more
    return figures


def announced(report: Any, until_plan: tuple[int, float] | None) -> Figures:
    """What Reprise said before and what it found, of the plan of the newest planned step."""
    return {
        "announced": report.predicted_peak_bytes or None,
        "announced_added": added(report.predicted_step_ns, report.base_step_ns),
        "reported_added": added(report.measured_step_ns, report.base_step_ns),
        "planned_after": until_plan and f"step {until_plan[0]}, {until_plan[1]:.1f} s",
        "planned_steps": report.planned_steps,
        "over": report.over_budget_steps,
        "checks": report.checks,
        "wrong": report.failed_checks,
        "in_python": report.in_python,
        "stage": report.stage,
        "why": report.why,
        "sentence": report.sentence,
    }


def op_times(here: Here, since_ns: int) -> Figures:
    """Of the newest step graph that a job has stored since then: its ops, where their times are
    from, and what these sum up to."""
    try:
        graph = stored_graph.find(here.scratch / "data", since_ns)
    except LookupError as why:
        return {"times_from": str(why)}
    rest = graph.times.get(stored_graph.REST, [])
    ops = sum(map(sum, graph.times.values())) - sum(rest)
    return {
        "ops": sum(map(len, graph.times.values())),
        "times_from": graph.timing or "the host",
        "ops_ms": ops / 1e6,
        "gap_ms": sum(rest) / 1e6,
    }


def added(time: float, plain: float) -> str | None:
    """Time beyond that of a plain step, as a share of it; None where one is not known."""
    return f"{time / plain - 1:+.1%}" if time and plain else None


def beside(here: Here, figures: Figures, plain: str, again: str = "") -> None:
    """Compares a row with a plain one: step time, losses, weights. Where the plain job itself does
    not come to the same weights twice, equal weights are asked of nobody, and that is said."""
    reference = here.found(plain)
    repeats = not again or here.found(again)["weights"] == reference["weights"]
    same = figures["weights"] == reference["weights"]
    words = {True: "equal", False: "differ"}
    compared = zip(figures["losses"], reference["losses"], strict=True)
    first = next((n for n, (a, b) in enumerate(compared) if a != b), None)
    here.say(
        added=added(figures["step_ms"], reference["step_ms"]),
        weights_beside_plain=words[same] if repeats else f"{words[same]} (plain's differ, too)",
        losses_differ_from_step=first,
    )


def digest(model: nn.Module) -> str:
    """The last bits of everything that the model has learned."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        flat = tensor.detach().contiguous().flatten().view(torch.uint8)
        sha.update(flat.cpu().numpy().tobytes())
    return sha.hexdigest()[:16]


def median_ms(step: Callable[[], Any], count: int) -> float:
    """Milliseconds on the device, the median of some calls."""
    pairs = []
    for _ in range(count):
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        step()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairs)
