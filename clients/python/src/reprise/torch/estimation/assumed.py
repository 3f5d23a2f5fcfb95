# SPDX-License-Identifier: Apache-2.0
"""Assumes times of ops that have not run, from a roofline model of this machine.

roofline_ns("aten.mm.default", touched_bytes)
graph = with_rooflines(graph)            # the step graph, with times
alive, peak, curve = walk(graph.message())   # where its memory is highest
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.internals.ops import OpKind


def with_rooflines(graph: CapturedGraph) -> CapturedGraph:
    """Returns the graph with the op times that are assumed on this machine, and its peak."""
    sizes = {storage.id: storage.bytes for storage in graph.storages}
    message = graph.message()
    for op, said in zip(graph.step.ops, message["ops"], strict=True):
        touched = sum(sizes.get(s, 0) for s in (*said["reads"], *said["writes"]))
        runs = op.kind != OpKind.VIEW and op.func is not None
        op.time_ns = roofline_ns(op.name, touched) if runs else 0
    total = sum(op.time_ns for op in graph.step.ops if op.func is not None)
    return replace(graph, measured_step_ns=total, measured_peak_bytes=walk(message)[1])


def roofline_ns(name: str, touched_bytes: int) -> int:
    """Returns the assumed time of an op that reads and writes this many bytes. A multiplication is
    assumed to do a hundred operations per element that it touches."""
    flops_per_ns, bytes_per_ns = _speeds()
    multiplies = any(word in name for word in ("mm", "conv", "attention", "linear"))
    work = touched_bytes / 4 * (100 if multiplies else 1)
    return int(1000 + max(touched_bytes / bytes_per_ns, work / flops_per_ns))


@cache
def _speeds() -> tuple[float, float]:
    """Measures how many operations and how many bytes this machine processes per ns."""
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


def walk(message: dict[str, Any]) -> tuple[list[int], int, list[int]]:
    """Returns the storages that are alive at the peak, the peak, and what is alive at each op, in
    bytes. A storage lives from the op that makes it to its last reader or its release."""
    ops = message["ops"]
    last = {s["id"]: s["release_op"] for s in message["storages"]}
    for number, op in enumerate(ops):
        for s in (*op["reads"], *op["writes"]):
            last[s] = max(last[s], number)
    for s in message["required"]:
        last[s] = len(ops)
    sizes = {s["id"]: s["bytes"] for s in message["storages"]}
    dies: dict[int, list[int]] = defaultdict(list)
    for s, number in last.items():
        dies[number].append(s)
    alive: dict[int, None] = {}
    live, peak, kept = message["static_bytes"], 0, []
    curve = []
    for number, op in enumerate(ops):
        for s in op["writes"]:
            alive[s] = None
            live += sizes[s]
        curve.append(live + op["workspace_bytes"])
        if curve[-1] > peak:
            peak, kept = curve[-1], list(alive)
        for s in dies.pop(number, ()):
            live -= sizes[s]
            del alive[s]
    return kept, peak, curve
