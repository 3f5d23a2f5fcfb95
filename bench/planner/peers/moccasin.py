# SPDX-License-Identifier: Apache-2.0
"""The interval model of Moccasin (Bartan et al., 2023), by OR-Tools CP-SAT.

Every op has up to two retention intervals over n(n+1)/2 events; stage t has events for ops 0..t and
ends with the first run of op t. An op's run needs an interval of each input that began before and
has not ended. The memory of all intervals is one cumulative constraint. The first solution hint is
the base order.
"""

from __future__ import annotations

import importlib.util
from typing import Any

NAME = "Moccasin model (CP-SAT)"
MOST_OPS = 400


def missing() -> str:
    return "" if importlib.util.find_spec("ortools") else "ortools is not installed"


def fits(graph: dict[str, Any]) -> str:
    if any(len(o["writes"]) != 1 or o["mutates"] or o["workspace_bytes"] for o in graph["ops"]):
        return "one output per op only"
    if len(graph["ops"]) > MOST_OPS:
        return f"at most {MOST_OPS} ops here"
    return ""


def solve(graph: dict[str, Any], budget_bytes: int, seconds: float) -> list[int] | None:
    from ortools.sat.python import cp_model

    ops = graph["ops"]
    n = len(ops)
    room = budget_bytes - graph["static_bytes"]
    maker = {o["writes"][0]: o["id"] for o in ops}
    required = {maker[s] for s in graph["required"]}
    unit = max(1, room >> 45)  # sums must fit in 62 bits
    size = [-(-graph["storages"][o["writes"][0]]["bytes"] // unit) for o in ops]
    time_unit = max(1, max(o["time_ns"] for o in ops) // 10**6)

    def event(stage: int, op: int) -> int:
        return stage * (stage + 1) // 2 + op

    last = event(n - 1, n - 1)
    model = cp_model.CpModel()
    begin: list[list[Any]] = []
    end: list[list[Any]] = []
    active: list[list[Any]] = []
    intervals, demands = [], []
    for v in range(n):
        first = event(v, v)
        again = [event(stage, v) for stage in range(v + 1, n)]
        begin.append([model.new_constant(first)])
        end.append([model.new_int_var(first, last, f"e{v}")])
        active.append([model.new_constant(1)])
        if again and ops[v]["kind"] == "pure":
            begin[v].append(
                model.new_int_var_from_domain(cp_model.Domain.from_values(again), f"s{v}b")
            )
            end[v].append(model.new_int_var(first, last, f"e{v}b"))
            active[v].append(model.new_bool_var(f"a{v}b"))
            model.add(begin[v][1] > end[v][0]).only_enforce_if(active[v][1])
        for s, e, a in zip(begin[v], end[v], active[v], strict=True):
            length = model.new_int_var(1, last + 1, "")
            intervals.append(model.new_optional_interval_var(s, length, e + 1, a, ""))
            demands.append(size[v])
        if v in required:
            model.add(end[v][-1] == last)
    for v in range(n):
        for u in {maker[s] for s in ops[v]["reads"]}:
            for s, a in zip(begin[v], active[v], strict=True):
                choices = []
                for us, ue, ua in zip(begin[u], end[u], active[u], strict=True):
                    chosen = model.new_bool_var("")
                    model.add(us < s).only_enforce_if(chosen)
                    model.add(ue >= s).only_enforce_if(chosen)
                    model.add_implication(chosen, ua)
                    choices.append(chosen)
                model.add_bool_or([*choices, a.negated() if hasattr(a, "negated") else ~a])
    model.add_cumulative(intervals, demands, room // unit)
    model.minimize(
        sum((ops[v]["time_ns"] // time_unit) * a for v in range(n) for a in active[v][1:])
    )
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 1
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    runs = [
        (solver.value(begin[v][i]), v)
        for v in range(n)
        for i in range(len(begin[v]))
        if solver.value(active[v][i])
    ]
    return [v for _, v in sorted(runs)]
