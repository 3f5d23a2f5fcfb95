# SPDX-License-Identifier: Apache-2.0
"""Plans requested over HTTP, without a framework: the answers, and what may go wrong."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import reprise
from reprise import plan as neutral
from reprise.agent.received import InfeasibleBudget
from reprise.base.errors import RepriseError, ServerUnavailable
from reprise.plan import (
    Plan,
    StepGraph,
    base_schedule,
    evaluate,
    plan,
    report_step,
    reporting,
    session,
    sweep,
)
from reprise.plan.asking import run_of
from reprise.plan.server import Server

sys.path.insert(0, str(Path(__file__).parent))
from random_graphs import random_graph


def layers(count: int = 6) -> StepGraph:
    """Returns a chain of layers and its backward, which needs every layer's input."""
    graph = StepGraph("layers", static_bytes=1000)
    kept = [graph.storage(100, "input")]
    graph.op("input", writes=kept, time_ns=1, kind="once")
    for layer in range(count):
        kept.append(graph.storage(100, f"h{layer}"))
        graph.op(f"layer{layer}", [kept[-2]], [kept[-1]], time_ns=10)
    gradient = kept[-1]
    for layer in reversed(range(count)):
        made = graph.storage(100, f"g{layer}")
        graph.op(f"back{layer}", [kept[layer], gradient], [made], time_ns=20, phase="backward")
        gradient = made
    graph.require(gradient)
    return graph


@pytest.fixture(scope="module")
def server(daemon_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One daemon for all requests of this file."""
    import json
    import subprocess
    import time

    folder = tmp_path_factory.mktemp("d")
    child = subprocess.Popen(
        [
            daemon_binary,
            "--listen",
            "127.0.0.1:0",
            "--agent-socket",
            folder / "a",
            "--data-dir",
            folder,
        ],
        stdin=subprocess.DEVNULL,
    )
    about = folder / "server.json"
    while not about.is_file():
        assert child.poll() is None, "reprised ended at once"
        time.sleep(0.01)
    said = json.loads(about.read_text())
    yield Server(said["url"], Path(said.get("token_file", os.devnull)).read_text().strip())
    child.terminate()
    assert child.wait(timeout=60) == 0


def test_the_figures_of_a_plan_are_those_of_the_reference_evaluator(server: Server) -> None:
    graph = layers()

    found = plan(graph, "0.6x", server=server)
    walked = evaluate(graph, found.schedule)

    assert found.peak_bytes <= found.budget_bytes < found.base_peak_bytes
    assert found.base_peak_bytes == evaluate(graph, base_schedule(graph)).peak_bytes
    assert (walked.peak_bytes, walked.time_ns) == (found.peak_bytes, found.time_ns)
    assert walked.bytes_at == found.predicted_bytes
    assert found.recomputed_ops


@pytest.mark.long
def test_plans_for_every_executor_are_valid_for_it_and_as_large_and_long_as_they_say(
    server: Server,
) -> None:
    pick = random.Random(7)
    checked = 0
    for executor in (
        "free",
        "tape:seeded_ok=1",
        "graph",
        "once",
        "tf-graph",
        "free:ns_per_op=9",
    ):
        graph = random_graph(pick, ops=16)
        try:
            found = plan(graph, "0.8x", executor, server=server)
        except InfeasibleBudget:
            found = plan(graph, "1x", executor, server=server)
        walked = evaluate(graph, found.schedule, executor)
        assert (walked.peak_bytes, walked.time_ns) == (found.peak_bytes, found.time_ns), executor
        assert walked.bytes_at == found.predicted_bytes
        checked += bool(found.recomputed_ops)
    assert checked > 0


def test_a_budget_that_is_too_small_is_refused_with_the_op_that_needs_more(
    server: Server,
) -> None:
    with pytest.raises(InfeasibleBudget) as refusal:
        plan(layers(), 1200, server=server)

    # Beside static memory the input, which nobody makes again, and what back5 reads and writes.
    assert refusal.value.smallest_bytes == 1400
    answer = refusal.value.plan
    assert answer is not None
    assert answer.infeasible is not None
    assert answer.bound_proof is neutral.BoundProof.CHECKED
    assert answer.infeasible.blocking_op_name.startswith("back")
    assert "Nothing fits in" in str(refusal.value)


def test_overhead_rises_as_the_budget_falls_until_no_plan_fits(server: Server) -> None:
    points = sweep(layers(), points=5, server=server)

    assert [p.budget_bytes for p in points] == sorted(
        (p.budget_bytes for p in points), reverse=True
    )
    assert (points[0].feasible, points[0].overhead) == (True, 0)
    costs = [p.overhead for p in points if p.feasible]
    assert costs == sorted(costs)
    assert any(cost > 0 for cost in costs)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"budget": "12G"}, 'the unit "G" can mean two sizes'),
        ({"budget": "90%"}, "90%"),
        ({"budget": "1x", "executor": "jit"}, "executor: there is no 'jit'"),
        ({"budget": "1x", "executor": "free:fast=1"}, "executor: unknown key 'fast'"),
        ({"budget": "1x", "executor": "free:max_runs=x"}, "max_runs=x: must be an integer"),
        ({"budget": "1x", "executor": "free:seeded_ok=2"}, "seeded_ok=2: must be 0 or 1"),
        ({"budget": "1x", "strategy": "best"}, "strategy: must be one of"),
        ({"budget": "1x", "time_limit_s": 0}, "time_limit_s: must be above 0"),
        ({"budget": "1x", "time_limit_s": "1"}, "time_limit_s: must be above 0"),
        ({"budget": "1x", "executor": None}, "executor: must be text, such as free"),
        ({"budget": "1x", "reserve_bytes": -1}, "reserve_bytes: must be from 0 to"),
        ({"budget": "1x", "threads": 1.5}, "threads: must be an integer, got 1.5"),
    ],
)
def test_a_meaningless_request_is_refused_in_one_sentence(
    server: Server, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RepriseError, match=r".") as refusal:
        plan(layers(), server=server, **arguments)

    assert sentence in str(refusal.value)


def test_what_is_no_graph_and_no_number_of_points_is_refused(server: Server) -> None:
    with pytest.raises(RepriseError, match=r"graph: must be a reprise\.plan\.StepGraph, got dict"):
        plan({"ops": []}, "1x", server=server)  # type: ignore[arg-type]
    with pytest.raises(RepriseError, match="points: must be from 0 to 501, got -1"):
        sweep(layers(), points=-1, server=server)


def test_a_graph_is_sent_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    upload = Server.upload
    monkeypatch.setattr(
        Server, "upload", lambda self, name, body: sent.append(name) or upload(self, name, body)
    )
    graph = layers(7)

    first, second = plan(graph, "0.8x", server=server), plan(graph, "0.7x", server=server)

    assert sent == ["layers"]
    assert run_of(first) == run_of(second)


@pytest.fixture
def beside(reprised: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A daemon of the test, which every client finds."""
    daemon = reprised()
    monkeypatch.setenv("REPRISE_SOCKET", str(daemon.socket))
    return daemon


# ---- The run -------------------------------------------------------------------


@pytest.fixture
def no_session() -> Iterator[None]:
    """Ends the reporting session that a test has opened."""
    session._agent, reporting._applied, reporting._unread = None, 0, False
    yield
    session.close()
    reporting._applied, reporting._unread = 0, False


def test_the_report_shows_measured_beside_predicted_values(
    beside: Any, until: Callable[..., None], no_session: None
) -> None:
    found = plan(layers(), "0.6x")

    told = [
        report_step(None, step=0, peak_bytes=found.base_peak_bytes, step_ns=1000),
        report_step(found, step=1, peak_bytes=found.peak_bytes, step_ns=1100),
        neutral.report_check(found, step=1, checked=4, differing=0),
    ]

    def verdict_now() -> dict[str, Any]:
        return beside.query("GetRun", {"runId": run_of(found)}).get("verdict", {})

    until(lambda: "checks" in verdict_now())
    verdict = verdict_now()

    assert told == [True, True, True]
    assert verdict["measuredPeakBytes"] == verdict["predictedPeakBytes"] == str(found.peak_bytes)
    assert (verdict["plannedSteps"], verdict["unplannedSteps"]) == (1, 1)
    assert verdict["validated"]
    assert verdict["gradientsEqual"]


def test_steps_of_two_graphs_belong_to_two_runs(
    beside: Any, until: Callable[..., None], no_session: None
) -> None:
    plans = [plan(layers(5), "0.6x"), plan(layers(8), "0.6x")]

    for found in plans:
        report_step(found, step=0, peak_bytes=found.peak_bytes, step_ns=1)

    def measured(found: Any) -> str:
        run = beside.query("GetRun", {"runId": run_of(found)})
        return str(run.get("verdict", {}).get("measuredPeakBytes"))

    until(
        lambda: [measured(found) for found in plans] == [str(found.peak_bytes) for found in plans]
    )
    assert run_of(plans[0]) != run_of(plans[1])


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"step": -1}, "step: must be from 0 to"),
        ({"peak_bytes": float("nan")}, "peak_bytes: must be an integer, got nan"),
        ({"step_ns": 1 << 70}, "step_ns: must be from 0 to"),
        ({"recomputed": 1 << 32}, "recomputed: must be from 0 to"),
    ],
)
def test_a_figure_that_cannot_be_is_not_reported(figures: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RepriseError, match=sentence):
        report_step(None, **{"step": 0, "peak_bytes": 1, "step_ns": 1, **figures})


def test_steps_reported_while_there_is_no_daemon_are_in_the_run_of_before_at_the_next_plan(
    home: Path,
    agent_library: Path,
    daemon_binary: Path,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[..., None],
    no_session: None,
) -> None:
    from reprise.agent import daemon

    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("REPRISE_DAEMON", str(daemon_binary))
    first = plan(layers(), "0.6x")
    report_step(first, step=0, peak_bytes=first.peak_bytes, step_ns=1)
    run = run_of(first)
    child, _ = daemon._listening[home / "run/reprise/agent.sock"]
    child.kill()
    child.wait()
    waits: list[int] = []
    steps = itertools.count(1)

    def report(found: Plan) -> bool:
        return report_step(found, step=next(steps), peak_bytes=found.peak_bytes, step_ns=1)

    flush = session._agent.flush
    monkeypatch.setattr(session._agent, "flush", lambda: (waits.append(1), flush())[1])
    assert all(report(first) for _ in range(20))
    waited = len(waits)  # for a daemon that is gone
    second = plan(layers(), "0.7x")
    until(lambda: report(second) and not reporting._unread)  # the agent connects in between
    reported = next(steps)

    def stored() -> Any:
        asked = {"runId": run, "fromStep": 0, "toStep": reported}
        return Server.find().call("Query/GetSteps", asked)["steps"]

    assert waited == 1
    assert run_of(second) == run
    until(lambda: stored() == str(reported))


def test_a_report_that_cannot_be_sent_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, no_session: None
) -> None:
    monkeypatch.setenv("REPRISE_DAEMON", str(home / "none"))
    monkeypatch.setenv("TMPDIR", str(home))  # not that of a daemon of this user

    assert report_step(None, step=0, peak_bytes=1, step_ns=1) is False


# ---- Servers that are not there, or not themselves ------------------------------


def test_without_any_daemon_the_error_says_what_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_DAEMON", str(home / "none"))

    with pytest.raises(ServerUnavailable, match="is not a program"):
        plan(layers(), "1x")


def test_a_named_server_that_does_not_answer_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_SERVER", "http://127.0.0.1:9/")

    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:9 does not answer"):
        plan(layers(), "1x")
    with pytest.raises(RepriseError, match="must be HOST:PORT"):
        Server("localhost")


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, b"<html>not here</html>", "<html>not here</html>"),
        (400, b'{"code":"invalid_argument","message":"ops[3]: no"}', "ops[3]: no"),
        (200, b"nothing that we know", "the answer is not JSON"),
        (200, b"[1]", "the answer is not an object"),
        (200, b'{"progress":1}', "closed the import without an answer"),
        (200, b'{"error":{"message":"step.json: byte 17"}}', "step.json: byte 17"),
    ],
)
def test_an_invalid_response_is_an_error_and_no_crash(
    status: int, body: bytes, sentence: str
) -> None:
    class Odd(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Odd) as odd:
        threading.Thread(target=odd.serve_forever, daemon=True).start()
        with pytest.raises(RepriseError) as refusal:
            plan(layers(), "1x", server=Server(f"127.0.0.1:{odd.server_port}"))
        odd.shutdown()

    assert sentence in str(refusal.value)


def test_one_connection_serves_many_requests_until_the_server_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new one is made only to a process that may have the token, and never unseen."""
    from reprise.plan import server as module

    connections: list[int] = []
    checked: list[int] = []
    monkeypatch.setattr(module, "check_listener", lambda host, port, _: checked.append(port))

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(0)

        def do_POST(self) -> None:
            connections[-1] += 1
            self.rfile.read(int(self.headers["Content-Length"]))
            failed = self.path.endswith("Fails")
            self.send_response(404 if failed else 200)
            text = b'{"message": "no such run"}' if failed else b"{}"
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            self.close_connection = len(connections) == 1 and connections[0] == 3

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        address = f"127.0.0.1:{http.server_port}"
        for number in range(6):
            asked = Server(address, "token")  # another one each time, as programs find it anew
            if number == 1:
                with pytest.raises(RepriseError, match="no such run"):
                    asked.call("Query/Fails", {})
            else:
                assert asked.call("Query/GetStatus", {}) == {}
        Server(address, "another token").call("Query/GetStatus", {})
        module._idle.clear()
        http.shutdown()
        thread.join()

    assert connections == [3, 3, 1]
    assert checked == [http.server_port] * 3


def test_a_server_is_asked_with_its_token(beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for named in (beside.url, beside.url.replace("127.0.0.1", "localhost")):
        monkeypatch.setenv("REPRISE_SERVER", named)
        assert plan(layers(), "0.9x").feasible
    with pytest.raises(RepriseError, match="this server asks for its token"):
        plan(layers(), "0.9x", server=Server(beside.url))
    monkeypatch.setenv("REPRISE_TOKEN_FILE", "/nowhere")
    with pytest.raises(RepriseError, match="/nowhere: the token cannot be read"):
        plan(layers(), "0.9x")


def test_an_address_of_grpc_is_refused_with_the_one_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPRISE_SERVER", "grpcs://plans.example:7070")

    with pytest.raises(RepriseError, match=r"speaks HTTP.*write plans\.example:7070, or https://"):
        plan(layers(), "0.9x")


def test_the_neutral_client_loads_no_framework_and_nothing_heavy(python: Any) -> None:
    code = (
        "import sys, reprise.plan\n"
        "heavy = {'torch', 'jax', 'keras', 'tensorflow', 'numpy', 'grpc', 'google', 'ctypes',"
        " 'subprocess', 'http.client', 'urllib.request', 'ssl', 'hashlib', 'socket', 'asyncio',"
        " 'json', 'pathlib', 'tempfile', 'logging', 'threading', 'importlib.metadata',"
        " 'reprise.plan.server', 'reprise.agent.agent', 'reprise.agent.daemon'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    # -S: without what the packages of this environment load at every start.
    done = python("-S", "-c", code)

    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert reprise.Plan is neutral.Plan


def test_the_example_of_another_framework_keeps_its_budget_and_every_bit(
    beside: Any, root: Path, python: Any
) -> None:
    done = python(
        str(root / "examples/numpy_autodiff.py"),
        *("--layers", "6", "--width", "64", "--rows", "4096", "--budget", "0.6x"),
    )

    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines()[1:])
    for name in ("plain", "planned"):
        measured, predicted = (int(word) for word in lines[name].split() if word.isdecimal())
        # tracemalloc counts the Python objects too.
        assert predicted <= measured <= predicted * 1.01
    assert lines["gradients"] == "0 of 6 differ"


def block(root: Path, language: str, number: int = 1) -> str:
    text = (root / "docs/api.md").read_text()
    return text.split(f"```{language}\n")[number].split("```")[0]


def test_the_client_of_the_page_needs_nothing_but_the_standard_library(
    beside: Any, root: Path, tmp_path: Path
) -> None:
    import subprocess
    import sys

    script = block(root, "python", 2)
    assert len([line for line in script.splitlines() if line]) <= 30
    assert "import reprise" not in script
    (tmp_path / "token").write_text(f"{beside.token}\n")
    script = script.replace("http://127.0.0.1:7070", beside.url)
    script = script.replace("~/.local/state/reprise/token", str(tmp_path / "token"))

    def run(graph: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "step.json").write_text(graph)
        command = [sys.executable, "-I", "-c", script]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )

    done = run(layers().to_json())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("It fits in"), done
    budgets = [int(line.split()[0]) for line in done.stdout.splitlines()[1:] if line[0].isdigit()]
    assert len(budgets) >= 2
    assert budgets[:2] == sorted(budgets[:2], reverse=True)

    refused = run("{}")
    assert refused.returncode == 1
    assert "ops" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_lines_of_the_page_run_in_python_and_with_curl(
    beside: Any, root: Path, python: Any, tmp_path: Path
) -> None:
    import subprocess

    (tmp_path / "step.json").write_text(layers().to_json())
    script = block(root, "sh").replace("http://127.0.0.1:7070", beside.url)
    script = script.replace("$(cat ~/.local/state/reprise/token)", beside.token)

    told = python("-c", block(root, "python"))
    curled = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    lines = told.stdout.splitlines()
    assert lines[0].startswith("It fits in"), told
    assert int(lines[1]) > 1_000_000
    assert len(lines) == 7
    assert curled.returncode == 0, curled
    answers = curled.stdout
    assert answers.startswith("It fits in"), answers
    for told in ('"points":[{', '"storages":[{', '"holds":true', '"schedule":[', '"past":{'):
        assert told in answers
    # An error is one of these, too.
    assert '"code":' not in answers
    again = StepGraph.from_json((tmp_path / "again.json").read_text())
    assert again.to_json() == layers().to_json()
