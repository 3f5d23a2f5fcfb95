# SPDX-License-Identifier: Apache-2.0
"""The evaluator in Python gives the results of the planner's."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprise.base.errors import RepriseError
from reprise.plan import FreePolicy, StepGraph, base_schedule, evaluate, with_frees

sys.path.insert(0, str(Path(__file__).parent))
from random_graphs import random_graph, random_schedule

# As the command evaluates a plan file: what was possible when it was made is in its schedule.
ALL = ":seeded_ok=1:collective_ok=1"
EXECUTORS = {"free": FreePolicy.EAGER, "tape": FreePolicy.PROGRAM, "graph": FreePolicy.EAGER}
Judge = Callable[[StepGraph, list[int], str], str]


@pytest.fixture
def planner(daemon_binary: Path, tmp_path: Path) -> Judge:
    """Returns what the planner's evaluator says about a schedule: its peak, or why it is not
    valid."""

    def judge(graph: StepGraph, schedule: list[int], executor: str) -> str:
        (tmp_path / "g.json").write_text(graph.to_json())
        entries = [["exec", e] if e >= 0 else ["free", -e - 1] for e in schedule]
        plan = {
            "format": "reprise.plan/1",
            "graph": "g.json",
            "budget": "1",
            "budget_bytes": 1,
            "feasible": True,
            # Too little: the command then says what it really is.
            "peak_bytes": 0,
            **dict.fromkeys(("base_peak_bytes", "time_ns", "base_time_ns", "overhead"), 0),
            "bound": 0,
            "bound_scope": "order",
            "proven_optimal": False,
            "solver": "",
            "solve_ms": 0,
            "saved": [],
            "recomputed_ops": [],
            "sentence": "",
            "bound_proof": "none",
            "free_policy": EXECUTORS[executor].name.lower(),
            "executor": executor,
            "schedule": entries,
        }
        (tmp_path / "p.json").write_text(json.dumps(plan))
        done = subprocess.run(
            [daemon_binary.with_name("reprise"), "show", "p.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found = re.search(r"schedule needs (\d+)|not a valid plan: (.*)", done.stderr)
        assert found is not None, done
        return found[1] or found[2]

    return judge


def judged(graph: StepGraph, schedule: list[int], executor: str) -> str:
    try:
        return str(evaluate(graph, schedule, executor + ALL).peak_bytes)
    except RepriseError as error:
        return str(error)


def test_the_peak_and_the_refusal_of_any_schedule_are_those_of_the_planner(planner: Judge) -> None:
    pick = random.Random(18)
    verdicts = []
    for case in range(120):
        executor = list(EXECUTORS)[case % len(EXECUTORS)]
        graph = random_graph(pick, windows=case % 4 == 0)
        schedule = random_schedule(pick, graph, EXECUTORS[executor])

        verdicts.append(judged(graph, schedule, executor))

        assert verdicts[-1] == planner(graph, schedule, executor), (graph.to_json(), schedule)
    # Both kinds were there, and more than one reason.
    reasons = {re.sub(r"\d+", "N", verdict) for verdict in verdicts if not verdict.isdecimal()}
    assert sum(verdict.isdecimal() for verdict in verdicts) > 15
    assert len(reasons) > 5


def chain() -> StepGraph:
    """Returns a graph: x -> a -> b, a backward op that needs both, then one that needs a."""
    graph = StepGraph("chain", static_bytes=7)
    x, a, b, g, h = (graph.storage(size) for size in (100, 10, 20, 5, 6))
    graph.op("x", writes=[x], time_ns=1, kind="once")
    graph.op("a", [x], [a], time_ns=10, again_ns=3)
    graph.op("b", [a], [b], time_ns=20, workspace_bytes=50)
    graph.op("g", [a, b], [g], time_ns=30, phase="backward")
    graph.op("h", [a, g], [h], time_ns=40, phase="backward")
    graph.require(h)
    return graph


def test_peak_and_time_are_those_counted_by_hand() -> None:
    graph = chain()

    base = evaluate(graph, base_schedule(graph))
    again = evaluate(graph, with_frees(graph, [0, 1, 2, 1, 3, 4]), "free:ns_per_op=5")

    assert base_schedule(graph) == [0, 1, -1, 2, 3, -3, 4, -2, -4]
    assert base.bytes_at == (107, 117, 87, 42, 28)
    assert (base.peak_bytes, base.peak_op, base.peak_entry, base.time_ns) == (117, 1, 1, 101)
    # x stays for the second run of a, whose first life ends before it.
    assert again.bytes_at == (107, 117, 187, 137, 42, 28)
    assert (again.time_ns, again.execs) == (109, 6)


def test_an_empty_step_needs_its_static_memory() -> None:
    graph = StepGraph("nothing", static_bytes=64)

    assert evaluate(graph, []).peak_bytes == 64


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ([0, 2], "schedule[1]: op 2 (b) runs for the first time before op 1"),
        ([0, 0], "schedule[1]: op 0 (x) must not run again"),
        ([0, 1, -2, 2], "schedule[3]: op 2 (b) needs storage 1 at version 1, but it is not"),
        ([0, 1, 2, 3], "schedule: op 4 never runs"),
        ([0, 1, 2, 3, 4, -5], "schedule: storage 4 is required at version 1"),
        ([9], "schedule[0]: there is no op 9"),
        ([-9], "schedule[0]: there is no storage 8"),
    ],
)
def test_a_schedule_that_breaks_a_rule_is_refused_with_the_entry(
    schedule: list[int], sentence: str
) -> None:
    with pytest.raises(RepriseError) as refusal:
        evaluate(chain(), schedule)

    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ("0 1", "schedule: must be a list of integers"),
        (None, "schedule: must be a list of integers, got None"),
        ([0, 0.5], r"schedule\[1\]: must be an integer, got 0.5"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule: Any, sentence: str) -> None:
    with pytest.raises(RepriseError, match=sentence):
        evaluate(StepGraph("empty", static_bytes=5), schedule)
    with pytest.raises(RepriseError, match="graph: must be a reprise"):
        evaluate({}, [0])  # type: ignore[arg-type]
