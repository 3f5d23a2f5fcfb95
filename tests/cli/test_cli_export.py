# SPDX-License-Identifier: Apache-2.0
"""reprise export: steps for Perfetto, reports, and the way back."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli_program import ROOT, Graph, Reprise

sys.path.insert(0, str(ROOT / "tests" / "formats"))
from snapshots import snapshot


def counter(trace: Any, process: int) -> list[int]:
    return [
        event["args"]["bytes"]
        for event in trace["traceEvents"]
        if event["ph"] == "C" and event["pid"] == process
    ]


def ops(trace: Any, process: int) -> list[Any]:
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["pid"] == process and event["cat"].startswith("cpu_op")
    ]


def walk(graph: Graph) -> list[int]:
    """Bytes alive at every op without a plan, as planner/model/evaluate.h defines them."""
    last: dict[int, int] = {}
    for op in graph["ops"]:
        for storage in [*op["writes"], *op["reads"]]:
            last[storage] = op["id"]
    size = {s["id"]: s["bytes"] for s in graph["storages"]}
    alive, curve = 0, []
    for op in graph["ops"]:
        alive += sum(size[s] for s in op["writes"])
        curve.append(graph["static_bytes"] + alive + op["workspace_bytes"])
        alive -= sum(
            size[s]
            for s in {*op["writes"], *op["reads"]}
            if last[s] == op["id"] and s not in graph["required"]
        )
    return curve


def test_the_counter_of_a_graph_is_the_evaluators_curve(
    reprise: Reprise, graph: Graph, graph_file: Path
) -> None:
    result = reprise("export", graph_file.name, "--format", "chrome")

    assert result.code == 0, result
    trace = json.loads((reprise.folder / "small.trace.json").read_text())
    assert counter(trace, 1) == walk(graph)
    assert max(counter(trace, 1)) == 1374
    slices = ops(trace, 1)
    assert [e["name"] for e in slices] == [op["name"] for op in graph["ops"]]
    assert [round(e["dur"] * 1000) for e in slices] == [op["time_ns"] for op in graph["ops"]]


def test_a_plan_stands_beside_the_step_without_it(
    reprise: Reprise, graph: Graph, graph_file: Path
) -> None:
    assert reprise("plan", graph_file.name, "--budget", "1330").code == 0

    result = reprise("export", "small.plan.json", "-o", "both.json", "--json")

    assert result.code == 0, result
    assert result.json()["steps"] == ["predicted", "predicted without a plan"]
    trace = json.loads((reprise.folder / "both.json").read_text())
    assert max(counter(trace, 1)) == 1324
    assert max(counter(trace, 2)) == 1374
    assert [e["name"] for e in ops(trace, 1) if "recompute" in e["cat"]] == ["f0"]
    assert [e["args"]["Part"] for e in ops(trace, 2)] == [op["phase"] for op in graph["ops"]]


def test_an_imported_snapshot_is_exported_with_the_same_memory(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(snapshot()))
    first = reprise("import", "s.pickle", "--json").json()

    out = reprise("export", first["run_id"], "-o", "run.json", "--json")

    assert out.json()["steps"] == ["measured without a plan"]
    trace = json.loads((reprise.folder / "run.json").read_text())
    assert counter(trace, 1) == [3000, 4000, 6000, 5000, 5500, 5000]


def test_a_report_is_one_file_with_the_plans_sentence(reprise: Reprise, graph_file: Path) -> None:
    planned = reprise("plan", "small.graph.json", "--budget", "1324")

    done = reprise("export", "small.plan.json", "--format", "html")

    assert done.code == 0, done
    assert "wrote small.report.html" in done.out
    html = (graph_file.parent / "small.report.html").read_text()
    sentence = planned.out.splitlines()[0]
    assert f'<p class="sentence">{sentence.replace("&", "&amp;")}' in html
    assert "Memory, predicted without a plan" in html
    assert "<script" not in html
    assert "://" not in html


def test_what_cannot_be_exported_is_one_sentence(reprise: Reprise, graph_file: Path) -> None:
    name = graph_file.name
    assert "--format" in reprise.fails(2, "export", name, "--format", "pdf")
    assert reprise("export", name).code == 0
    assert "--force" in reprise.fails(1, "export", name)
    assert reprise("export", name, "--force").code == 0
    assert "no such file" in reprise.fails(1, "export", "nothing.json")
    assert "no server" in reprise.fails(4, "export", "latest")
    (reprise.folder / "bad.json").write_text("{")
    assert reprise.fails(1, "export", "bad.json").startswith("bad.json: ")


def test_a_budget_nothing_fits_in_has_no_step(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("plan", graph_file.name, "--budget", "1100", "--json")
    assert result.code == 3
    (reprise.folder / "x.plan.json").write_text(result.out)

    assert "no plan fits its budget" in reprise.fails(1, "export", "x.plan.json")


def test_a_trace_comes_back_with_its_ops_and_its_memory(
    reprise: Reprise,
    server: subprocess.Popen[str],
    graph: Graph,
    graph_file: Path,
) -> None:
    """A predicted step as a trace, as a run, as a trace, and as a run again."""
    assert reprise("export", graph_file.name, "-o", "0.json").code == 0
    names = [op["name"] for op in graph["ops"]]
    peak = max(walk(graph))

    for turn in range(2):
        run = reprise("import", f"{turn}.json", "--json").json()
        assert run["peak_bytes"] == peak
        assert reprise("export", run["run_id"], "-o", f"{turn + 1}.json").code == 0
        trace = json.loads((reprise.folder / f"{turn + 1}.json").read_text())

        # The measured step first, beside what is predicted of its graph.
        assert [op["name"] for op in ops(trace, 1)] == names
        assert max(counter(trace, 1)) == peak
        assert max(counter(trace, 2)) == peak
        times = [round(op["dur"] * 1000) for op in ops(trace, 1)]
        assert times == [op["time_ns"] for op in graph["ops"]]


def test_a_step_graph_is_imported_as_a_run_to_plan(
    reprise: Reprise, server: subprocess.Popen[str], graph_file: Path
) -> None:
    result = reprise("import", graph_file.name)

    assert result.code == 0, result
    assert "step graph: 6 ops" in result.out
    assert "holds no measurement" in result.err
    run_id = next(line for line in result.out.splitlines() if "run " in line).split()[1]
    trace = reprise("export", run_id, "-o", "run.json", "--json").json()
    assert trace["steps"] == ["predicted without a plan"]
    assert trace["peak_bytes"] == 1374


def test_a_setting_of_another_tool_is_said_with_its_cost_and_writes_nothing(
    reprise: Reprise, graph: Graph
) -> None:
    for op in graph["ops"]:
        if op["phase"] == "forward":
            op["module"] = f"layers.{op['id']}"
    (reprise.folder / "named.json").write_text(json.dumps(graph))
    reprise("plan", "named.json", "--budget", "1x", "-o", "named.plan.json")
    before = sorted(reprise.folder.iterdir())

    said = reprise("export", "named.plan.json", "--for", "megatron")
    as_json = reprise("--json", "export", "named.plan.json", "--for", "megatron")

    assert said.code == as_json.code == 0
    assert said.out.startswith("megatron checkpoints nothing: peak ")
    assert "the plan itself: peak" in said.out
    assert json.loads(as_json.out)["fits"] is True
    assert sorted(reprise.folder.iterdir()) == before


def test_a_setting_needs_a_plan_and_no_file(reprise: Reprise, graph_file: Path) -> None:
    graph = reprise("export", graph_file.name, "--for", "torchtitan")
    out = reprise("export", graph_file.name, "--for", "torchtitan", "--out", "x")
    unknown = reprise("export", graph_file.name, "--for", "deepspeed")

    assert graph.code == 1
    assert "make its plan first: reprise plan" in graph.err
    assert out.code == unknown.code == 2
    assert "leave out --out" in out.err
