# SPDX-License-Identifier: Apache-2.0
"""Plans in which regions of the forward run again as a whole, with regions inside them: what
checkpointed functions do that call checkpointed functions. The tape replays their schedules."""

from __future__ import annotations

import copy
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import referee
from jobs import captured, compile_plan, different, plain_step, planned_step, start_meter
from nets import WIDTH, Chain, ConvNet, RandomNet, job

JOBS: dict[str, Any] = {
    "chain": lambda: job(Chain(40), 64),
    "convolutions": lambda: job(ConvNet(6), 4, 3, 8, 8),
    "random": lambda: job(RandomNet(5), 64, WIDTH),
}


def plan_of(
    message: dict[str, Any], executor: str, budgets: tuple[str, ...], program: Path, folder: Path
) -> dict[str, Any]:
    """Returns a plan for the first of these budgets that has one."""
    path = folder / "step.graph.json"
    path.write_text(json.dumps(message))
    for budget in budgets:
        done = subprocess.run(
            [
                *(str(program), "--json", "plan", str(path), "--budget", budget),
                *("--executor", f"{executor}:seeded_ok=1"),
                *("--time-limit", "15s", "--gap", "10%"),
            ],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        if found["feasible"] and found["recomputed_ops"]:
            return found
    pytest.fail("no plan recomputes anything")


@pytest.mark.e2e
@pytest.mark.parametrize("name", JOBS)
def test_the_tape_runs_plans_that_recompute_each_op_once(
    name: str, daemon_binary: Path, tmp_path: Path
) -> None:
    made = JOBS[name]()
    plain_step(made, 0)
    graph = captured(made, start_meter())
    program = daemon_binary.parent / "reprise"
    executor = "once:free_policy=program:duplicate_outputs=1"
    found = plan_of(graph.message(), executor, ("0.7x", "0.8x", "0.9x"), program, tmp_path)
    schedule = [int(n) if what == "exec" else -int(n) - 1 for what, n in found["schedule"]]
    peak, _, _ = referee.evaluate(graph.message(), schedule)
    state = copy.deepcopy(made.model.state_dict())
    expected = plain_step(made, 3, step=False)
    made.model.load_state_dict(state)

    grads, counts, _ = planned_step(made, graph, schedule, 3, step=False)

    assert different(expected, grads) == []
    assert (counts.mismatches, counts.on_demand) == (0, 0)
    assert counts.replayed == compile_plan(graph, schedule).replays > 0
    assert peak <= found["budget_bytes"]
    assert max(Counter(found["recomputed_ops"]).values()) == 1


def regions_in_regions(message: dict[str, Any], outer: int = 16, inner: int = 4) -> list[int]:
    """Returns a schedule of nested regions for a chain: what a region makes of the regions inside
    it is freed when it ends, and these make it once more."""
    ops = message["ops"]
    again = ("OP_KIND_PURE", "OP_KIND_SEEDED")
    forward = [
        o for o, op in enumerate(ops) if op["phase"] == "PHASE_FORWARD" and op["kind"] in again
    ]
    place = {s: at for at, o in enumerate(forward) for s in ops[o]["writes"]}
    execs: list[int] = []
    opened: set[int] = set()
    inside = -1
    for o, op in enumerate(ops):
        for s in op["reads"] if op["phase"] == "PHASE_BACKWARD" else ():
            at = place.get(s)
            if at is None or at // inner == inside:
                continue
            if at // outer not in opened:
                opened.add(at // outer)
                execs += forward[at // outer * outer :][:outer]
            inside = at // inner
            execs += forward[inside * inner :][:inner]
        execs.append(o)
    return referee.with_frees(message, execs)


def test_the_tape_runs_regions_in_regions() -> None:
    made = job(Chain(80), 64)
    plain_step(made, 0)
    graph = captured(made, start_meter())
    message = graph.message()
    schedule = regions_in_regions(message)
    peak, _, _ = referee.evaluate(message, schedule)
    base, _, _ = referee.evaluate(message, referee.base_schedule(message))
    expected = plain_step(made, 3, step=False)

    grads, counts, _ = planned_step(made, graph, schedule, 3, step=False)

    assert different(expected, grads) == []
    assert (counts.mismatches, counts.on_demand) == (0, 0)
    assert max(Counter(e for e in schedule if e >= 0).values()) == 3
    assert counts.replayed > 80
    assert peak - message["static_bytes"] < 0.4 * (base - message["static_bytes"])
