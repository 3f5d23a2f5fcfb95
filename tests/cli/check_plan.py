# SPDX-License-Identifier: Apache-2.0
"""An independent referee for plans, by the rules of docs/formats.md alone.

It shares no code with the planner, so that a mistake in the evaluator cannot
hide a mistake in a solver. A schedule is valid when

  1. every op runs at least once, and first runs follow the order of the file;
  2. a storage that an op reads or mutates is present, at the version the base
     order gives that op, whenever the op runs;
  3. what is created is absent, or present at version 1 (then nothing is
     allocated); what is freed is present;
  4. ops that may not run twice (once, collective, and seeded where the state
     is not stored) run once;
  5. the required storages are present at the end, at their last version.

Its peak is the largest value, over all execs, of static bytes + present
storages (inputs and outputs included) + the op's workspace.

  python check_plan.py GRAPH PLAN        prints the figures, exits 1 if wrong
"""

from __future__ import annotations

import json
import sys
from itertools import zip_longest
from typing import Any


class InvalidPlan(Exception):
    """The first rule that is broken."""


def versions(graph: dict[str, Any]) -> tuple[list[dict[int, int]], dict[int, int]]:
    """Per op the version it needs of each storage; and the last versions."""
    now: dict[int, int] = {}
    needs = []
    for op in graph["ops"]:
        needs.append({s: now[s] for s in {*op["reads"], *op["mutates"]}})
        for s in op["mutates"]:
            now[s] += 1
        for s in op["writes"]:
            now[s] = 1
    return needs, now


def walk(graph: dict[str, Any], schedule: list[list[Any]]) -> tuple[int, int]:
    """Peak bytes and time of a schedule; InvalidPlan where it breaks a rule."""
    needs, last = versions(graph)
    bytes_of = {s["id"]: s["bytes"] for s in graph["storages"]}
    present: dict[int, int] = {}
    runs = [0] * len(graph["ops"])
    next_first = live = peak = time = 0
    for at, (what, which) in enumerate(schedule):
        if what == "free":
            if which not in present:
                raise InvalidPlan(f"schedule[{at}]: frees {which}, which is absent")
            del present[which]
            live -= bytes_of[which]
            continue
        if what != "exec":
            raise InvalidPlan(f"schedule[{at}]: {what!r} is not exec or free")
        op = graph["ops"][which]
        if runs[which] == 0:
            if which != next_first:
                raise InvalidPlan(f"schedule[{at}]: op {which} runs before op {next_first}")
            next_first += 1
        elif op["kind"] not in ("pure", "view"):
            raise InvalidPlan(f"schedule[{at}]: op {which} is {op['kind']} and runs again")
        runs[which] += 1
        for s, version in needs[which].items():
            if present.get(s) != version:
                raise InvalidPlan(
                    f"schedule[{at}]: op {which} needs storage {s} at {version}, "
                    f"present is {present.get(s)}"
                )
        for s in op["writes"]:
            if s not in present:
                live += bytes_of[s]
            elif present[s] != 1:
                raise InvalidPlan(f"schedule[{at}]: storage {s} is present at {present[s]}")
            present[s] = 1
        for s in op["mutates"]:
            present[s] += 1
        peak = max(peak, graph["static_bytes"] + live + op["workspace_bytes"])
        time += op["time_ns"]
    if next_first != len(graph["ops"]):
        raise InvalidPlan(f"op {next_first} never runs")
    for s in graph["required"]:
        if present.get(s) != last[s]:
            raise InvalidPlan(f"storage {s} is required at {last[s]}, present: {present.get(s)}")
    return peak, time


def base_schedule(graph: dict[str, Any]) -> list[list[Any]]:
    """The given order, every storage freed after its last reader."""
    last_use: dict[int, int] = {}
    for at, op in enumerate(graph["ops"]):
        for s in (*op["reads"], *op["mutates"], *op["writes"]):
            last_use[s] = at
    required = set(graph["required"])
    dying: dict[int, list[int]] = {}
    for s, at in last_use.items():
        if s not in required:
            dying.setdefault(at, []).append(s)
    schedule: list[list[Any]] = []
    for at in range(len(graph["ops"])):
        schedule.append(["exec", at])
        schedule.extend(["free", s] for s in sorted(dying.get(at, [])))
    return schedule


def working_set(graph: dict[str, Any]) -> tuple[int, int]:
    """The bytes that the largest single op needs, and that op: a lower bound of every budget."""
    bytes_of = {s["id"]: s["bytes"] for s in graph["storages"]}
    return max(
        (
            graph["static_bytes"]
            + sum(bytes_of[s] for s in {*op["reads"], *op["writes"], *op["mutates"]})
            + op["workspace_bytes"],
            -op["id"],
        )
        for op in graph["ops"]
    )


def region_execs(graph: dict[str, Any], plan: dict[str, Any]) -> list[int]:
    """What an executor with regions runs: docs/formats.md, "Regions"."""
    ops, regions, levels = graph["ops"], plan["regions"], plan["levels"]
    lazy = plan.get("lazy_region") or plan["executor"] in ("once", "joint")
    needs, last = versions(graph)
    makes: list[dict[int, int]] = []
    now: dict[int, int] = {}
    for op in ops:
        for s in op["mutates"]:
            now[s] += 1
        for s in op["writes"]:
            now[s] = 1
        makes.append({s: now[s] for s in {*op["writes"], *op["mutates"]}})
    maker = {(s, v): o for o, made in enumerate(makes) for s, v in made.items()}
    forward = next(o for o, op in enumerate(ops) if op["phase"] == "backward")
    left = {s: v for made in makes[:forward] for s, v in made.items()}

    around: dict[int, list[int]] = {}  # by storage: the regions around it, the outermost first
    for s in left:
        touched = [o for o in range(forward) if s in needs[o] or s in makes[o]]
        around[s] = [
            r
            for r, (begin, end) in enumerate(regions)
            if begin <= min(touched) <= max(touched) < end
        ]
    level = {s: min(levels[s], len(around[s])) for s in left}
    present: dict[int, int] = {}
    execs: list[int] = []
    replayed: set[int] = set()

    def run(o: int) -> None:
        execs.append(o)
        present.update(makes[o])

    def run_again(region: int, wanted: list[tuple[int, int]]) -> None:
        begin, end = regions[region]
        todo: set[int] = set()
        while wanted:
            s, version = wanted.pop()
            if present.get(s) == version:
                continue
            if not begin <= maker[s, version] < end:
                raise InvalidPlan(f"regions[{region}]: storage {s} is missing outside it")
            if maker[s, version] not in todo:
                todo.add(maker[s, version])
                wanted += needs[maker[s, version]].items()
        for o in sorted(todo):
            run(o)

    def restore(s: int, version: int, reader: int) -> None:
        if s not in left or not around[s]:
            raise InvalidPlan(f"op {reader} needs storage {s}, which no region makes again")
        for depth, r in enumerate(around[s][: level[s] or len(around[s])], start=1):
            begin, end = regions[r]
            inside = [i for i, other in enumerate(regions) if begin <= other[0] and other[1] <= end]
            if present.get(s) == version:
                return
            if lazy and inside == [r]:
                mine = [v for v in needs[reader].items() if begin <= maker[v] < end]
                run_again(r, mine)
            elif r not in replayed:
                replayed.add(r)
                homes = [t for t in left if around[t] and around[t][-1] in inside]
                # A storage of level 0 is missing if a re-run has made an earlier version of it.
                run_again(r, [(t, left[t]) for t in homes if level[t] <= depth])
                for t in homes:
                    if level[t] > depth:
                        present.pop(t, None)

    for o in range(forward):
        run(o)
    for s in left:
        if level[s] > 0:
            del present[s]
    for o in range(forward, len(ops)):
        for s, version in needs[o].items():
            if present.get(s) != version:
                restore(s, version, o)
        run(o)

    # Backwards: a re-run stays where one of its outputs is wanted.
    wanted = {(s, last[s]) for s in graph["required"]}
    runs = [execs.count(o) for o in range(len(ops))]
    kept = []
    for o in reversed(execs):
        made = set(makes[o].items())
        runs[o] -= 1
        if runs[o] == 0 or made & wanted:
            wanted = wanted - made | set(needs[o].items())
            kept.append(o)
    return kept[::-1]


def check_regions(graph: dict[str, Any], plan: dict[str, Any]) -> None:
    """InvalidPlan unless the schedule is what the regions do."""
    execs = [op for what, op in plan["schedule"] if what == "exec"]
    for at, (said, true) in enumerate(zip_longest(execs, region_execs(graph, plan))):
        if said != true:
            raise InvalidPlan(f"exec {at}: the plan runs op {said}, its regions run op {true}")


def check(graph: dict[str, Any], plan: dict[str, Any]) -> None:
    """InvalidPlan unless all that the plan says is true."""

    def equal(what: str, said: Any, true: Any) -> None:
        if said != true:
            raise InvalidPlan(f"{what}: the plan says {said}, it is {true}")

    equal("format", plan["format"], "reprise.plan/1")
    base_peak, base_time = walk(graph, base_schedule(graph))
    equal("base_peak_bytes", plan["base_peak_bytes"], base_peak)
    equal("base_time_ns", plan["base_time_ns"], base_time)
    if not plan["feasible"]:
        if plan["smallest_budget_bytes"] <= plan["budget_bytes"]:
            raise InvalidPlan("refused without a proof: the needed budget is not above the budget")
        return
    peak, time = walk(graph, plan["schedule"])
    equal("peak_bytes", plan["peak_bytes"], peak)
    equal("time_ns", plan["time_ns"], time)
    if peak > plan["budget_bytes"]:
        raise InvalidPlan(f"the peak {peak} is above the budget {plan['budget_bytes']}")
    if "levels" in plan:
        check_regions(graph, plan)
    elif plan.get("executor") in ("once", "joint", "nested", "region"):
        raise InvalidPlan(f"levels: missing in a plan of executor {plan['executor']}")
    overhead = time / base_time - 1 if base_time else 0.0
    if abs(plan["overhead"] - overhead) > 1e-9:
        raise InvalidPlan(f"overhead: the plan says {plan['overhead']}, it is {overhead}")
    if plan["bound"] > plan["overhead"] + 1e-9:
        raise InvalidPlan(f"the bound {plan['bound']} is above the overhead {plan['overhead']}")
    # A millionth is left for the floating point of an integer program's bound.
    if plan["proven_optimal"] and plan["overhead"] - plan["bound"] > 1e-6:
        raise InvalidPlan("called optimal, but the bound is below the overhead")
    runs: dict[int, int] = {}
    again = []
    for what, which in plan["schedule"]:
        if what == "exec":
            runs[which] = runs.get(which, 0) + 1
            if runs[which] > 1:
                again.append(which)
    equal("recomputed_ops", sorted(plan["recomputed_ops"]), sorted(again))


def main(argv: list[str]) -> int:
    with open(argv[1], encoding="utf-8") as file:
        graph = json.load(file)
    with open(argv[2], encoding="utf-8") as file:
        plan = json.load(file)
    try:
        check(graph, plan)
    except InvalidPlan as error:
        print(f"{argv[2]}: {error}")
        return 1
    print(plan["sentence"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
