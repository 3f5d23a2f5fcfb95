# SPDX-License-Identifier: Apache-2.0
"""Selective checkpointing by the integer program of torch.distributed._tools (sac_ilp), with the
whole forward as one module. Stops at 5 % of its own surrogate, as shipped."""

from __future__ import annotations

import importlib.util
from typing import Any

import graphs

from peers.torch_knapsack import room_for_saved

NAME = "PyTorch sac_ilp"


def missing() -> str:
    absent = [m for m in ("torch", "pulp") if importlib.util.find_spec(m) is None]
    return f"{' and '.join(absent)}: not installed" if absent else ""


def fits(graph: dict[str, Any]) -> str:
    return "" if graphs.candidates(graph) else "no forward value is read by the backward"


def solve(graph: dict[str, Any], budget_bytes: int, seconds: float) -> list[int] | None:
    from torch.distributed._tools.sac_estimator import SACStats
    from torch.distributed._tools.sac_ilp import get_optimal_checkpointing_policy_per_module

    chosen = graphs.candidates(graph)
    maker = {s: o for o in graph["ops"] for s in o["writes"]}
    size = [graph["storages"][s]["bytes"] for s in chosen]
    stats = SACStats(
        func_names=[maker[s].get("name", "op") for s in chosen],
        runtimes=[maker[s]["time_ns"] / 1e6 for s in chosen],
        memory=size,
        view_like_ops=[],
        rand_ops=[],
        saved_autograd_ops=[],
        inplace_ops=[],
        force_store_random=False,
    )
    share = room_for_saved(graph, budget_bytes, chosen) / max(1, sum(size))
    policy = get_optimal_checkpointing_policy_per_module(stats, min(1.0, share))
    if not policy:
        return None
    saved = {s for s, keep in zip(chosen, policy, strict=True) if keep}
    return graphs.recompute_all_but(graph, saved)
