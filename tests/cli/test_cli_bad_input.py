# SPDX-License-Identifier: Apache-2.0
"""Every wrong file gets one sentence that begins with its name, and exit code 1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import Graph, Reprise

Damaged = Callable[[Callable[[Graph], None]], str]


def refused(reprise: Reprise, name: str) -> str:
    """The sentence; the same from every command that reads a graph."""
    said = reprise.fails(1, "plan", name, "--budget", "1324", "--json")
    assert said.startswith(f"{name}: "), said
    assert reprise.fails(1, "sweep", name) == said
    assert reprise.fails(1, "show", name) == said
    return said


def test_a_missing_file(reprise: Reprise) -> None:
    assert "no such file" in refused(reprise, "none.json")


def test_a_folder(reprise: Reprise) -> None:
    (reprise.folder / "sub.json").mkdir()
    assert "is a folder" in refused(reprise, "sub.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(reprise: Reprise, graph_file: Path) -> None:
    graph_file.chmod(0)
    assert "cannot read" in refused(reprise, "small.graph.json")


def test_an_unreadable_file_for_root_too(reprise: Reprise) -> None:
    # Reading it from the start fails for everyone.
    said = reprise.fails(1, "show", "/proc/self/mem")
    assert said.startswith("/proc/self/mem: cannot read")


def test_an_empty_file(reprise: Reprise) -> None:
    (reprise.folder / "empty.json").write_text("")
    assert "empty" in refused(reprise, "empty.json")


def test_malformed_json_names_the_byte(reprise: Reprise) -> None:
    (reprise.folder / "bad.json").write_text('{"format": "reprise.graph/1", "ops": [,]}')
    assert "byte 38: not valid JSON" in refused(reprise, "bad.json")


def test_binary_rubbish(reprise: Reprise) -> None:
    (reprise.folder / "bad.json").write_bytes(bytes(range(256)))
    assert "byte 0: not valid JSON" in refused(reprise, "bad.json")
    (reprise.folder / "bad.pb").write_bytes(b"\xff" * 64)
    assert "not a serialized StepGraph" in refused(reprise, "bad.pb")


def test_a_truncated_file_names_its_end(reprise: Reprise, graph: Graph) -> None:
    text = json.dumps(graph)[:777]
    (reprise.folder / "bad.json").write_text(text)
    assert "byte 777: the JSON ends too early" in refused(reprise, "bad.json")


def test_deep_nesting(reprise: Reprise) -> None:
    (reprise.folder / "bad.json").write_text('{"a":' * 100_000)
    assert "nests deeper than" in refused(reprise, "bad.json")


def test_another_format(reprise: Reprise, damaged: Damaged) -> None:
    name = damaged(lambda g: g.update(format="reprise.graph/9"))
    assert 'must be "reprise.graph/1", got "reprise.graph/9"' in refused(reprise, name)


def test_another_kind_of_json(reprise: Reprise) -> None:
    (reprise.folder / "bad.json").write_text('{"traceEvents": []}')
    assert "not a step graph" in refused(reprise, "bad.json")


def test_a_plan_where_a_graph_is_wanted(reprise: Reprise, graph_file: Path) -> None:
    reprise("plan", "small.graph.json", "--budget", "1324")
    said = reprise.fails(1, "plan", "small.plan.json", "--budget", "1324")
    assert 'got "reprise.plan/1"' in said


def test_a_cycle(reprise: Reprise, damaged: Damaged) -> None:
    name = damaged(lambda g: g["ops"][1]["reads"].append(4))
    assert "ops[1]" in refused(reprise, name)


def test_an_op_that_reads_what_it_makes(reprise: Reprise, damaged: Damaged) -> None:
    name = damaged(lambda g: g["ops"][1]["reads"].append(1))
    assert "ops[1]" in refused(reprise, name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g["storages"][1].update(bytes=-1), "storages[1].bytes: must not be negative"),
        (lambda g: g["ops"][1].update(time_ns=-1), "ops[1].time_ns: must not be negative"),
        (lambda g: g.update(static_bytes=-1), "static_bytes: must not be negative"),
        (lambda g: g["ops"][1]["reads"].append(6), "ops[1].reads[1]: there is no storage 6"),
        (lambda g: g["ops"][1]["reads"].append(-1), "ops[1].reads[1]: must not be negative"),
        (lambda g: g["ops"][1]["writes"].append(2**40), "ops[1].writes[1]: must be at most"),
        (lambda g: g["required"].append(77), "required[1]: there is no storage 77"),
        (lambda g: g["ops"][1].update(id=0), "ops[1].id"),
        (lambda g: g["storages"][1].update(id=0), "storages[1].id"),
        (lambda g: g["ops"].reverse(), "ops[0].id"),
        (lambda g: g["ops"][2]["reads"].append(1), "ops[2]"),
        (lambda g: g["ops"][1]["writes"].append(2), "2"),
        (lambda g: g["ops"][1]["writes"].clear(), "1"),
        (lambda g: g["ops"][2]["mutates"].append(0), "ops[2]"),
        (lambda g: g["storages"][1].update(bytes=2**63), "storages[1].bytes"),
        (lambda g: g["storages"][1].update(bytes=10**400), "this number is too large"),
        (lambda g: g["storages"][1].update(bytes=1.5), "storages[1].bytes: must be an integer"),
        (lambda g: g["storages"][1].update(bytes="9"), "storages[1].bytes: must be an integer"),
        (lambda g: [s.update(bytes=2**62) for s in g["storages"]], "2^62"),
        (lambda g: [o.update(time_ns=2**62) for o in g["ops"]], "2^62"),
        (lambda g: g["ops"].clear(), "ops"),
        (lambda g: g["ops"][1].update(kind="magic"), "ops[1].kind: must be pure"),
        (lambda g: g["ops"][1].pop("phase"), "ops[1].phase: missing"),
        (lambda g: g.pop("ops"), "ops"),
        (lambda g: g.update(ops={}), "ops: must be a list"),
    ],
)
def test_a_wrong_graph_names_the_place(
    reprise: Reprise, damaged: Damaged, change: Callable[[Graph], None], says: str
) -> None:
    assert says in refused(reprise, damaged(change))


def test_a_plan_that_does_not_hold_is_not_shown(reprise: Reprise, graph_file: Path) -> None:
    reprise("plan", "small.graph.json", "--budget", "1324")
    path = reprise.folder / "small.plan.json"
    plan = json.loads(path.read_text())

    path.write_text(json.dumps(plan | {"schedule": plan["schedule"][1:]}))
    assert "not a valid plan" in reprise.fails(1, "show", "small.plan.json")

    path.write_text(json.dumps(plan | {"peak_bytes": 1100}))
    assert "its schedule needs 1324" in reprise.fails(1, "show", "small.plan.json")

    path.write_text(json.dumps(plan | {"graph_id": "0000000000000001"}))
    assert "make a new plan" in reprise.fails(1, "show", "small.plan.json")

    path.write_text(json.dumps(plan | {"schedule": [["exec", 99]]}))
    assert "no op 99" in reprise.fails(1, "show", "small.plan.json")
