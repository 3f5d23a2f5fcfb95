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


def once_execs(graph: dict[str, Any], said: list[int]) -> list[int]:
    """What an executor of kind `once` runs that saves what these execs save: docs/formats.md,
    "Once"."""
    ops = graph["ops"]
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

    saved: set[int] = set()
    remade: set[int] = set()
    for o in said[forward:]:
        saved |= set(needs[o]) - remade
        remade |= set(makes[o])
    saved |= set(graph["required"]) - remade
    present: dict[int, int] = {}
    execs: list[int] = []

    def run(o: int) -> None:
        execs.append(o)
        present.update(makes[o])

    for o in range(forward):
        run(o)
    present = {s: version for s, version in present.items() if s in saved}
    for o in range(forward, len(ops)):
        todo: set[int] = set()
        wanted = list(needs[o].items())
        while wanted:
            s, version = wanted.pop()
            if present.get(s) == version or maker[s, version] in todo:
                continue
            if maker[s, version] >= forward:
                raise InvalidPlan(f"op {o} needs storage {s}, which the forward does not make")
            todo.add(maker[s, version])
            wanted += needs[maker[s, version]].items()
        for again in sorted(todo):
            run(again)
        run(o)

    # Backwards: a re-run stays where one of its outputs is wanted.
    read = {(s, last[s]) for s in graph["required"]}
    runs = [execs.count(o) for o in range(len(ops))]
    kept = []
    for o in reversed(execs):
        made = set(makes[o].items())
        runs[o] -= 1
        if runs[o] == 0 or made & read:
            read = read - made | set(needs[o].items())
            kept.append(o)
    return kept[::-1]


def check_once(graph: dict[str, Any], plan: dict[str, Any]) -> None:
    """InvalidPlan unless the schedule is what its saved set does."""
    execs = [op for what, op in plan["schedule"] if what == "exec"]
    for at, (said, true) in enumerate(zip_longest(execs, once_execs(graph, execs))):
        if said != true:
            raise InvalidPlan(f"exec {at}: the plan runs op {said}, its saved set op {true}")


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
    if plan.get("executor") in ("once", "joint"):
        check_once(graph, plan)
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
