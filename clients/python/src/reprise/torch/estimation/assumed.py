# SPDX-License-Identifier: Apache-2.0
"""Assumes times and workspaces of ops that have not run, from a roofline model of this machine.

    roofline_ns("aten.mm.default", touched_bytes)
    message = with_assumed(graph)            # the step graph as a message, with both filled in
    alive, peak = walk(message)              # where its memory is highest

Workspaces inside ops are not known beforehand. On a CPU convolutions copy what they read or write
into blocks of their own; elsewhere a margin stands for workspaces (`MARGIN`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from reprise.torch.capture.step_graph import CapturedGraph
from reprise.torch.internals.ops import OpKind

__all__ = ["roofline_ns", "walk", "with_assumed", "with_rooflines"]

# Convolutions and attention need a workspace: this fraction of what they write.
MARGIN = 0.05


def with_rooflines(graph: CapturedGraph, device: str) -> CapturedGraph:
    """Returns the graph with the op times and workspaces that are assumed on a device."""
    message = with_assumed(graph, device)
    for op, made in zip(graph.step.ops, message["ops"], strict=True):
        op.time_ns, op.workspace_bytes = made["time_ns"], made["workspace_bytes"]
    figures = {key: message[key] for key in ("measured_step_ns", "measured_peak_bytes")}
    return replace(graph, **figures)


def with_assumed(graph: CapturedGraph, device: str) -> dict[str, Any]:
    """Returns the step graph as a message, with the op times and workspaces that are assumed on a
    device."""
    message = graph.message()
    sizes = {s["id"]: s["bytes"] for s in message["storages"]}
    total = 0
    for op, made in zip(message["ops"], graph.step.ops, strict=True):
        if made.kind == OpKind.VIEW or made.func is None:
            op["time_ns"] = 0
            continue
        touched = sum(sizes.get(s, 0) for s in (*op["reads"], *op["writes"]))
        op["time_ns"] = roofline_ns(op["name"], touched)
        op["workspace_bytes"] = max(op["workspace_bytes"], _workspace_bytes(op, sizes, device))
        total += op["time_ns"]
    message["measured_step_ns"] = total
    _, peak = walk(message)
    message["measured_peak_bytes"] = peak
    return message


def _workspace_bytes(op: dict[str, Any], sizes: dict[int, int], device: str) -> int:
    """Returns the assumed workspace of an op, in bytes. `sizes`: of storages, by id."""
    written = sum(sizes.get(s, 0) for s in op["writes"])
    name = op["name"]
    if torch.device(device).type == "cpu":
        if "convolution_backward" in name:
            return sum(sizes.get(s, 0) for s in op["reads"])
        copies = "convolution" in name or "batch_norm_backward" in name
        return written if copies else 0
    return int(MARGIN * written) if "conv" in name or "attention" in name else 0


def roofline_ns(name: str, touched_bytes: int) -> int:
    """Returns the assumed time of an op that reads and writes this many bytes. A multiplication is
    assumed to do a hundred operations per element that it touches."""
    flops_per_ns, bytes_per_ns = _speeds()
    work = touched_bytes / 4 * (100 if _multiplies(name) else 1)
    return int(1000 + max(touched_bytes / bytes_per_ns, work / flops_per_ns))


def _multiplies(name: str) -> bool:
    """Returns whether an op multiplies matrices, judged by its name."""
    return any(word in name for word in ("mm", "conv", "attention", "linear"))


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


def walk(message: dict[str, Any]) -> tuple[list[int], int]:
    """Returns the storages that are alive at the peak, and the peak in bytes. A storage lives from
    the op that makes it to its last reader or its release."""
    ops = message["ops"]
    last = {s["id"]: s["release_op"] for s in message["storages"]}
    for number, op in enumerate(ops):
        for s in op["reads"]:
            last[s] = max(last[s], number)
    for s in message["required"]:
        last[s] = len(ops)
    sizes = {s["id"]: s["bytes"] for s in message["storages"]}
    alive: dict[int, int] = {}
    live, peak, kept = message["static_bytes"], 0, []
    for number, op in enumerate(ops):
        for s in op["writes"]:
            alive[s] = sizes[s]
            live += sizes[s]
        if live + op["workspace_bytes"] > peak:
            peak, kept = live + op["workspace_bytes"], list(alive)
        for s in [s for s in alive if last[s] <= number]:
            live -= alive.pop(s)
    return kept, peak
