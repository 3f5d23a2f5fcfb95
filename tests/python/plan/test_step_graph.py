# SPDX-License-Identifier: Apache-2.0
"""An invalid step graph is refused before it is sent, and the error names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reprise.base.errors import RepriseError
from reprise.plan import StepGraph


def two_ops() -> StepGraph:
    graph = StepGraph("two", static_bytes=8)
    a, b = graph.storage(100, "a"), graph.storage(50, "b")
    graph.op("first", writes=[a], time_ns=3)
    graph.op("second", [a], [b], time_ns=4, phase="backward")
    graph.require(b)
    return graph


def test_a_built_graph_is_read_back_from_its_file() -> None:
    graph = two_ops()
    c = graph.storage(9, "c", category="gradient", pinned=True, release_op=2)
    graph.op("third", writes=[c], mutates=[0], time_ns=5, kind="seeded", state_bytes=16)

    again = StepGraph.from_json(graph.to_json())

    assert graph.ops[2].reads == [0]
    assert (again.storages, again.ops, again.required) == (
        graph.storages,
        graph.ops,
        graph.required,
    )
    assert again.to_json() == graph.to_json()


def test_sizes_may_be_numpy_integers() -> None:
    graph = StepGraph(static_bytes=np.int64(8))
    made = graph.storage(np.prod([3, 4]))
    graph.op("made", writes=np.array([made]), time_ns=np.uint32(5))

    assert json.loads(graph.to_json())["storages"][0]["bytes"] == 12


Spoil = Callable[[StepGraph], Any]
WRONG: dict[str, Spoil] = {
    "static_bytes: must not be negative, got -1": lambda g: setattr(g, "static_bytes", -1),
    "name: must be text, got 7": lambda g: setattr(g, "name", 7),
    "storages[1].bytes: must be an integer, got 1.5": lambda g: setattr(
        g.storages[1], "bytes", 1.5
    ),
    "storages[0].bytes: must be an integer, got True": (
        lambda g: setattr(g.storages[0], "bytes", True)
    ),
    "storages[0].bytes: must be less than 2^62": lambda g: setattr(g.storages[0], "bytes", 1 << 62),
    "storages: their bytes sum to more than 2^62": (
        lambda g: [setattr(s, "bytes", 1 << 61) for s in g.storages]
    ),
    "storages[0].name: is not valid Unicode": lambda g: setattr(g.storages[0], "name", "\ud800"),
    "storages[0].category: must be one of": lambda g: setattr(g.storages[0], "category", "weights"),
    "storages[0].pinned: must be True or False": lambda g: setattr(g.storages[0], "pinned", 1),
    "storages[2]: no op writes it": lambda g: g.storage(5),
    "storages[1].release_op: op 0 is not between its writer 1": (
        lambda g: setattr(g.storages[1], "release_op", 0)
    ),
    "ops[1].phase: must be one of forward, backward, optimizer, got 'bwd'": (
        lambda g: setattr(g.ops[1], "phase", "bwd")
    ),
    "ops[0].kind: must be one of": lambda g: setattr(g.ops[0], "kind", "random"),
    "ops[0].time_ns: must be an integer, got nan": (
        lambda g: setattr(g.ops[0], "time_ns", float("nan"))
    ),
    "ops: their time_ns sum to more than 2^62": (
        lambda g: [setattr(op, "time_ns", (1 << 62) - 1) for op in g.ops]
    ),
    "ops[1].reads[0]: there is no storage 99, the graph has 2": (
        lambda g: setattr(g.ops[1], "reads", [99])
    ),
    "ops[0].reads[0]: storage 1 is not written by an earlier op": (
        lambda g: setattr(g.ops[0], "reads", [1])
    ),
    "ops[1].reads[1]: names storage 0 twice": lambda g: setattr(g.ops[1], "reads", [0, 0]),
    "ops[1].mutates[0]: storage 1 is not in the reads of this op": (
        lambda g: setattr(g.ops[1], "mutates", [1])
    ),
    "ops[1].writes[1]: storage 0 is already written by op 0": (
        lambda g: setattr(g.ops[1], "writes", [1, 0])
    ),
    "ops[1].writes: must be a list of storages": lambda g: setattr(g.ops[1], "writes", 1),
    "required[1]: there is no storage 5": lambda g: g.require(5),
    "required[1]: must be an integer, got 'b'": lambda g: g.require("b"),
    "ops[2].reads: must be a list of storages, got 'ab'": lambda g: g.op("x", "ab", time_ns=1),
    "ops[2].time_ns: must be an integer, got 0.5": lambda g: g.op("x", time_ns=0.5),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_an_invalid_field_is_named_by_its_path(sentence: str) -> None:
    def spoilt() -> str:
        graph = two_ops()
        WRONG[sentence](graph)
        return graph.to_json()

    with pytest.raises(RepriseError) as refusal:
        spoilt()

    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "graph: not JSON"),
        ("[]", "graph: must be an object of format reprise.graph/1"),
        ('{"format":"reprise.graph/1","storages":3}', "storages: must be a list of objects"),
        ('{"format":"reprise.graph/1","storages":[3]}', "storages[0]: must be an object, got 3"),
        (
            '{"format":"reprise.graph/1","storages":[{"id":4,"bytes":1}],"ops":[]}',
            "storages[0].id: must be 0, its position, got 4",
        ),
        (
            '{"format":"reprise.graph/1","storages":[],"ops":[{"name":"x"}]}',
            "ops[0].time_ns: is missing",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_the_position(text: str, sentence: str) -> None:
    with pytest.raises(RepriseError) as refusal:
        StepGraph.from_json(text)

    assert str(refusal.value).startswith(sentence)


def test_the_graphs_of_others_come_back_as_they_were(root: Path) -> None:
    from os import environ

    folder = environ.get("REPRISE_GRAPHS")
    if not folder:
        pytest.skip("REPRISE_GRAPHS names no folder with the public benchmark graphs")
    for path in sorted(Path(folder).glob("*.json")):
        given = json.loads(path.read_text())

        again = json.loads(StepGraph.from_json(path.read_text()).to_json())

        assert len(again["ops"]) == len(given["ops"])
        for key in ("reads", "writes", "mutates", "time_ns", "workspace_bytes", "phase", "kind"):
            assert [op[key] for op in again["ops"]] == [op[key] for op in given["ops"]]
        assert [s["bytes"] for s in again["storages"]] == [s["bytes"] for s in given["storages"]]
