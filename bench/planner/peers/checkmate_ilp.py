# SPDX-License-Identifier: Apache-2.0
"""The integer program of Checkmate (Jain et al., MLSys 2020), by SciPy's HiGHS.

Stage t runs op t for the first time. R[t,i]: op i runs in stage t; S[t,i]: its output is kept from
stage t-1 to t; F[t,i,k]: it is freed after op k; U[t,k]: bytes while op k runs.
"""

from __future__ import annotations

import importlib.util
from typing import Any

NAME = "Checkmate ILP (HiGHS)"
MOST_OPS = 110


def missing() -> str:
    return "" if importlib.util.find_spec("scipy") else "scipy is not installed"


def fits(graph: dict[str, Any]) -> str:
    if any(len(o["writes"]) != 1 or o["mutates"] or o["workspace_bytes"] for o in graph["ops"]):
        return "one output per op only"
    if len(graph["ops"]) > MOST_OPS:
        return f"n^2 variables: at most {MOST_OPS} ops here"
    return ""


class Rows:
    """A sparse matrix row by row, with its sides."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        for column, value in terms:
            self.row.append(len(self.low))
            self.column.append(column)
            self.value.append(value)
        self.low.append(low)
        self.high.append(high)


def solve(graph: dict[str, Any], budget_bytes: int, seconds: float) -> list[int] | None:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_matrix

    ops = graph["ops"]
    n = len(ops)
    inf = np.inf
    scale = float(budget_bytes - graph["static_bytes"])
    if scale <= 0:
        return None
    maker = {o["writes"][0]: o["id"] for o in ops}
    size = [graph["storages"][o["writes"][0]]["bytes"] / scale for o in ops]
    deps = [[maker[s] for s in o["reads"]] for o in ops]
    users: list[list[int]] = [[] for _ in ops]
    for o in range(n):
        for d in deps[o]:
            users[d].append(o)
    index: dict[tuple[Any, ...], int] = {}

    def var(*key: Any) -> int:
        return index.setdefault(key, len(index))

    for t in range(n):
        for i in range(t + 1):
            var("R", t, i)
            var("U", t, i)
    for t in range(n + 1):
        for i in range(t):
            var("S", t, i)
    rows = Rows()
    for t in range(n):
        rows.add([(var("R", t, t), 1)], 1, 1)
        for i in range(t + 1):
            for d in deps[i]:
                kept = [(var("S", t, d), -1.0)] if d < t else []
                rows.add([(var("R", t, i), 1.0), (var("R", t, d), -1.0), *kept], -inf, 0)
    for t in range(1, n + 1):
        for i in range(t):
            kept = [(var("S", t - 1, i), -1.0)] if i < t - 1 else []
            rows.add([(var("S", t, i), 1.0), (var("R", t - 1, i), -1.0), *kept], -inf, 0)
    for s in graph["required"]:
        rows.add([(var("S", n, maker[s]), 1)], 1, 1)
    for t in range(n):
        for k in range(t + 1):
            # Bytes while k runs: those before, less what k-1 freed, plus k.
            terms = [(var("U", t, k), 1.0), (var("R", t, k), -size[k])]
            if k == 0:
                terms += [(var("S", t, i), -size[i]) for i in range(t)]
            else:
                terms.append((var("U", t, k - 1), -1.0))
                for i in {*deps[k - 1], k - 1}:
                    terms.append((var("F", t, i, k - 1), size[i]))
            rows.add(terms, 0, 0)
            for i in {*deps[k], k}:
                later = [j for j in users[i] if k < j <= t]
                hazards = [(var("R", t, k), -1.0)] + [(var("R", t, j), 1.0) for j in later]
                if i <= t:
                    hazards.append((var("S", t + 1, i), 1.0))
                f = var("F", t, i, k)
                most = float(len(later) + 2)
                rows.add([(f, 1.0), *hazards], 0, inf)
                rows.add([(f, most), *hazards], -inf, most - 1)
    count = len(index)
    cost = np.zeros(count)
    integral = np.ones(count)
    high = np.ones(count)
    low = np.zeros(count)
    total = sum(o["time_ns"] for o in ops)
    for key, column in index.items():
        if key[0] == "R":
            cost[column] = ops[key[2]]["time_ns"] / total
            if ops[key[2]]["kind"] == "once" and key[1] != key[2]:
                high[column] = 0
        if key[0] == "U":
            integral[column] = 0
    matrix = coo_matrix((rows.value, (rows.row, rows.column)), shape=(len(rows.low), count))
    answer = milp(
        cost,
        constraints=LinearConstraint(matrix.tocsr(), rows.low, rows.high),
        integrality=integral,
        bounds=Bounds(low, high),
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    if answer.x is None:
        return None
    runs = [(t, i) for t in range(n) for i in range(t + 1) if answer.x[index["R", t, i]] > 0.5]
    return [i for _, i in sorted(runs)]
