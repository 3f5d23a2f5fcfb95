# SPDX-License-Identifier: Apache-2.0
"""The knapsack of the installed PyTorch (torch._functorch, activation_memory_budget).

Decides which forward values that the backward reads are saved; the rest is made again when the
backward needs it. Memory during the backward is not part of its model: the peak it then has is what
the table shows.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import graphs

NAME = "PyTorch knapsack (dp)"


def missing() -> str:
    return "" if importlib.util.find_spec("torch") else "torch is not installed"


def fits(graph: dict[str, Any]) -> str:
    return "" if graphs.candidates(graph) else "no forward value is read by the backward"


def room_for_saved(graph: dict[str, Any], budget_bytes: int, candidates: list[int]) -> int:
    """What the budget leaves for candidates, all else at the peak as without a plan."""
    peak, _ = graphs.base(graph)
    total = sum(graph["storages"][s]["bytes"] for s in candidates)
    return max(0, total - (peak - budget_bytes))


def solve(graph: dict[str, Any], budget_bytes: int, seconds: float) -> list[int] | None:
    from torch._functorch._activation_checkpointing.knapsack import dp_knapsack

    chosen = graphs.candidates(graph)
    maker = {s: o for o in graph["ops"] for s in o["writes"]}
    size = [graph["storages"][s]["bytes"] for s in chosen]
    total = max(1, sum(size))
    _, saved, _ = dp_knapsack(
        [b / total for b in size],
        [maker[s]["time_ns"] + 1.0 for s in chosen],
        room_for_saved(graph, budget_bytes, chosen) / total,
    )
    return graphs.recompute_all_but(graph, {chosen[i] for i in saved})
