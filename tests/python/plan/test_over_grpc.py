# SPDX-License-Identifier: Apache-2.0
"""Plans requested over gRPC: the same answers as over HTTP, the same errors, the same messages as
the proto files define."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reprise.errors import RepriseError, ServerUnavailable
from reprise.plan import Plan, StepGraph, plan, sweep
from reprise.plan.asking import run_of
from reprise.plan.finding import server_at
from reprise.plan.received import InfeasibleBudget
from reprise.plan.sent import PlanServer
from reprise.plan.wire import decode, encode
from reprise.plan.wire_fields import ENUMS, MESSAGES

sys.path.insert(0, str(Path(__file__).parent))
from random_graphs import random_graph


@pytest.fixture(scope="module", autouse=True)
def grpcio() -> Any:
    return pytest.importorskip("grpc", reason="grpcio is in clients/python/requirements-dev.txt")


@pytest.fixture
def beside(reprised: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A daemon of the test, whose address and token this process knows."""
    daemon = reprised()
    monkeypatch.setenv("REPRISE_SOCKET", str(daemon.socket))
    return daemon


def grpc_address(daemon: Any) -> str:
    return str(daemon.url.replace("http://", "grpc://"))


def message_types(root: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Returns the fields of every message of the proto files, as `wire_fields.MESSAGES` has
    them."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for path in sorted((root / "proto/reprise/v1").glob("*.proto")):
        text = re.sub(r"//.*", "", path.read_text())
        for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            fields = re.findall(r"(repeated )?([\w.]+|map<[^>]+>) (\w+) = (\d+);", body)
            found[name] = {
                field: (
                    int(number),
                    "*Entry" if "map<" in kind else ("*" if many else "") + kind,
                )
                for many, kind, field, number in fields
            }
    found["Entry"] = {"key": (1, "string"), "value": (2, "string")}
    return found


def test_every_field_and_enum_is_the_one_of_the_proto_files(root: Path) -> None:
    known = message_types(root)
    wrong = [
        f"{message}.{field}"
        for message, fields in MESSAGES.items()
        for field, found in fields.items()
        if known[message].get(field) != found
    ]
    protos = "".join(path.read_text() for path in (root / "proto/reprise/v1").glob("*.proto"))
    for enum, members in ENUMS.items():
        body = re.search(rf"^enum {enum} \{{(.*?)^\}}", protos, re.MULTILINE | re.DOTALL)
        assert body is not None
        for member, number in members.items():
            if not re.search(rf"_{member} = {number};", body[1]):
                wrong.append(f"{enum}.{member}")

    assert wrong == []


def test_messages_are_read_as_they_were_written() -> None:
    plan_ = {
        "plan_id": "0123456789abcdef",
        "time_ns": -3,
        "overhead": 0.25,
        "feasible": True,
        "schedule": [0, -1, 300, -(2**31)],
        "infeasible": {"storages": [0, 7, 1 << 31], "blocking_op_name": "größer"},
    }

    assert decode("PlanEvent", encode("PlanEvent", {"plan": plan_})) == {"plan": plan_}
    assert decode("Plan", encode("Plan", {"planId": "a"})) == {"plan_id": "a"}
    # A field that this client does not know, as a newer server may send.
    assert decode("GraphRef", b"\x12\x01x" + encode("GraphRef", {"graph_id": "a"})) == {
        "graph_id": "a"
    }
    with pytest.raises(ValueError, match="has no field"):
        encode("GraphRef", {"graph": "a"})
    for data in (b"\x0a\xff", b"\x0a\x05abc", b"\x0b", b"\x0a\x01\xff", b"\xff"):
        with pytest.raises(RepriseError, match="cannot be read"):
            decode("GraphRef", data)


def every_field() -> StepGraph:
    """Returns a graph that uses every field of a graph file."""
    graph = StepGraph(
        "every field",
        static_bytes=1 << 40,
        flavour="f",
        source="s",
        note="n",
        measured_peak_bytes=(1 << 40) + 4000,
        measured_step_ns=9,
    )
    x = graph.storage(1000, "x", category="input", pinned=True)
    y = graph.storage(0, "y", saved_for_backward=True, release_op=2)
    z = graph.storage(2000, "z", category="gradient")
    graph.op("load", writes=[x], time_ns=1, kind="once", module="data")
    graph.op(
        *("drop", [x], [y]),
        time_ns=5,
        again_ns=6,
        kind="seeded",
        state_bytes=16,
        workspace_bytes=8,
    )
    graph.op(
        *("back", [x, y], [z]),
        time_ns=7,
        mutates=[x],
        phase="backward",
        replay_point=False,
        replay_windows=(0, 0, 2, 2),
    )
    graph.require(z)
    return graph


def answer(graph: StepGraph, budget: str, server: PlanServer) -> Plan:
    """Returns the plan or the refusal, without the time that the search took."""
    try:
        found: Plan | None = plan(graph, budget, "free:seeded_ok=1", server=server)
    except InfeasibleBudget as refusal:
        found = refusal.plan
    assert found is not None
    return replace(found, solve_ms=0.0)


def test_the_answers_are_those_over_http(beside: Any) -> None:
    http, grpc = server_at(beside.url), server_at(grpc_address(beside))
    pick = random.Random(3)
    graphs = [every_field(), *(random_graph(pick, ops=10) for _ in range(3))]
    refused = 0

    for graph in graphs:
        sent = grpc.send(graph)
        assert sent.graph_id == http.send(graph).graph_id
        run = beside.query("GetRun", {"runId": sent.run_id})
        assert (run["name"], run["graphId"]) == (
            graph.name or "step graph",
            sent.graph_id,
        )
        assert run["state"] == "RUN_STATE_FINISHED"
        for budget in ("1x", "0.5x"):
            answers = [answer(graph, budget, server) for server in (http, grpc)]
            refused += not answers[0].feasible
            assert answers[0] == answers[1]
        assert sweep(graph, points=4, server=grpc) == sweep(graph, points=4, server=http)

    assert 0 < refused < 2 * len(graphs)


def test_a_server_that_is_named_with_grpc_is_asked_with_its_token(
    beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_SERVER", grpc_address(beside))

    found = plan(every_field(), "1x")

    assert str(run_of(found)).startswith("graph-")
    monkeypatch.setenv("REPRISE_SOCKET", "/nowhere")
    monkeypatch.setenv("REPRISE_TOKEN_FILE", "/dev/null")
    with pytest.raises(RepriseError, match="this server asks for its token"):
        plan(
            StepGraph.from_json(every_field().to_json().replace("every", "another")),
            "1x",
        )


def test_a_graph_of_several_parts_arrives_whole(beside: Any) -> None:
    graph = StepGraph("large")
    before: list[int] = []
    for number in range(3000):
        made = graph.storage(8, "s" * 400)
        graph.op(f"op {number}", before, [made], time_ns=1)
        before = [made]
    graph.require(*before)

    sent = server_at(grpc_address(beside)).send(graph)

    answer = plan(graph, "1x", server=server_at(grpc_address(beside)))
    assert answer.graph_id == sent.graph_id
    assert len(answer.decisions) == 3000


def test_a_field_that_the_server_refuses_is_named(beside: Any) -> None:
    server = server_at(grpc_address(beside))

    with pytest.raises(RepriseError, match="no step graph"):
        list(server.stream("Planner/Plan", {"graphId": "1" * 16, "budget": "1x"}))


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:9 does not answer over gRPC"):
        plan(every_field(), "1x", server=server_at("grpc://127.0.0.1:9"))
    with pytest.raises(RepriseError, match="must be HOST:PORT"):
        server_at("grpc://localhost")


def test_a_server_of_something_else_is_an_error_and_no_crash(grpcio: Any) -> None:
    other = grpcio.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()

    with pytest.raises(RepriseError, match="is no reprised of this version"):
        plan(every_field(), "1x", server=server_at(f"grpc://127.0.0.1:{port}"))
    other.stop(None)


def test_without_grpcio_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)

    with pytest.raises(RepriseError, match="needs the package grpcio"):
        server_at("grpc://127.0.0.1:7070")


def test_a_certificate_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPRISE_CA", "/nowhere/ca.pem")

    with pytest.raises(RepriseError, match="REPRISE_CA: the file cannot be read"):
        server_at("grpcs://127.0.0.1:7070")
