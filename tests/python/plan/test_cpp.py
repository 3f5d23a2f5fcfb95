# SPDX-License-Identifier: Apache-2.0
"""clients/cpp, compiled as a program would compile it, against the real daemon."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reprise import RepriseError
from reprise.plan import evaluate, plan, with_frees
from reprise.plan.step_graph import StepGraph

WRONG = r"""
#include <cstdio>
#include "plan.h"
using reprise::Graph;
void Say(const Graph& graph) { std::printf("%s\n", graph.Check().c_str()); }
int main() {
  Graph graph("g", 1);
  const int a = graph.AddStorage(10), b = graph.AddStorage(20);
  graph.AddOp({.name = "a", .writes = {a}});
  Graph unwritten = graph, late = graph, unknown = graph, twice = graph, again = graph;
  Say(unwritten);
  late.AddOp({.name = "b", .reads = {b}, .writes = {b}});
  Say(late);
  unknown.AddOp({.name = "b", .reads = {a, 7}, .writes = {b}});
  Say(unknown);
  twice.AddOp({.name = "b", .reads = {a, a}, .writes = {b}});
  Say(twice);
  again.AddOp({.name = "b", .reads = {a}, .writes = {b, a}});
  Say(again);
  graph.AddOp({.name = "b", .reads = {a}, .writes = {b}, .time_ns = -1});
  Say(graph);
  std::vector<int> schedule;
  Graph one("one", 0);
  const int c = one.AddStorage(1);
  one.AddOp({.name = "c", .writes = {c}});
  for (const char* text : {"{\"schedule\": [\"0\", -1]}", "{\"schedule\":[0,1]}",
                           "{\"schedule\":[0,-2]}", "{}", "{\"schedule\":[0"})
    std::printf("%d\n", reprise::ReadSchedule(text, one, &schedule));
}
"""


@pytest.fixture(scope="module")
def build(
    root: Path, agent_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Compiles a source with the library, and with more of its files."""
    folder = tmp_path_factory.mktemp("cpp")
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    paths = ["-I", root / "profiler/include", "-I", root / "clients/cpp"]
    library = ["-L", agent_library.parent, "-lreprise_agent"]
    runtime = f"-Wl,-rpath,{agent_library.parent}"

    messages = agent_library.parent.parent / "proto"
    # What gRPC needs itself is not named: the linker follows its libraries.
    follow = "-Wl,--copy-dt-needed-entries"
    grpc = [messages / "libreprise_proto.a", follow, "-lgrpc++", "-lprotobuf"]
    objects: dict[str, Path] = {}
    made: dict[str, Path] = {}

    def object_of(name: str) -> Path:
        if name not in objects:
            objects[name] = folder / f"{name}.o"
            more = ["-isystem", messages] if name == "remote.cc" else []
            source = root / "clients/cpp" / name
            subprocess.run(
                ["g++", *flags, *paths, *more, "-c", source, "-o", objects[name]], check=True
            )
        return objects[name]

    def compiled(source: str, *more: str) -> Path:
        if source in made:
            return made[source]
        if "remote.cc" in more and not messages.is_dir():
            pytest.skip(f"the messages of proto/ are not built: there is no {messages}")
        program = folder / f"p{len(made)}"
        program.with_suffix(".cc").write_text(source)
        used = [object_of(name) for name in ("plan.cc", *more)]
        files = [program.with_suffix(".cc"), *used, "-o", program]
        remote = grpc if "remote.cc" in more else []
        subprocess.run(["g++", *flags, *paths, *files, *library, *remote, runtime], check=True)
        made[source] = program
        return program

    return compiled


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def beside(reprised: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    daemon = reprised()
    monkeypatch.setenv("REPRISE_SOCKET", str(daemon.socket))
    return daemon


@pytest.mark.long
def test_the_example_keeps_its_budget_to_the_byte_and_every_bit(
    build: Callable[[str], Path],
    root: Path,
    beside: Any,
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = build((root / "clients/cpp/example.cc").read_text())
    monkeypatch.setenv("REPRISE_RUN_ID", "01900000-0000-7000-8000-000000000018")

    kept, refused = run(program, "0.5x"), run(program, "1KiB")

    words = kept.stdout.replace(",", "").split()
    plain, predicted, measured = int(words[1]), int(words[4]), int(words[6])
    assert measured == predicted < plain
    assert words[-2:] == ["0", "differ"]
    assert refused.returncode == 1
    assert refused.stdout.startswith("no plan: Nothing fits in 1.0 KiB: op ")

    def verdict() -> dict[str, Any]:
        run_id = "01900000-0000-7000-8000-000000000018"
        return beside.query("GetRun", {"runId": run_id}).get("verdict", {})

    until(lambda: verdict().get("plannedSteps") == 1)
    assert verdict()["measuredPeakBytes"] == str(measured)


def test_without_a_daemon_a_reason_is_given_and_nothing_fails(
    build: Callable[[str], Path], root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(home))  # not that of a daemon of this user
    program = build((root / "clients/cpp/example.cc").read_text())

    alone = run(program, "0.5x")

    assert alone.stdout == "no plan: no daemon answers\n"


def test_the_lines_of_the_page_compile_and_plan(
    build: Callable[[str], Path], root: Path, beside: Any
) -> None:
    text = (root / "docs/api.md").read_text()

    done = run(build(text.split("```cpp\n")[1].split("```")[0]))

    entries = []
    for line in done.stdout.splitlines():
        what, number = line.rsplit(" ", 1)
        entries.append(int(number) if what == "run op" else -int(number) - 1)
    graph = StepGraph("two layers", static_bytes=1_000_000)
    x, h, y, dh = (graph.storage(400_000) for _ in range(4))
    dw = graph.storage(40_000)
    graph.op("load", writes=[x], time_ns=100)
    graph.op("layer1", [x], [h], time_ns=900)
    graph.op("layer2", [h], [y], time_ns=900)
    graph.op("layer2 backward", [h, y], [dh], time_ns=1800, phase="backward")
    graph.op("layer1 backward", [x, dh], [dw], time_ns=1800, phase="backward")
    graph.require(dw)
    assert evaluate(graph, entries) == evaluate(graph, plan(graph, "0.9x").schedule)


def test_an_invalid_graph_or_schedule_is_refused_with_its_path(
    build: Callable[[str], Path],
) -> None:
    done = run(build(WRONG))

    assert done.stdout.splitlines() == [
        "storages[1]: no op writes it",
        "ops[1].reads[0]: storage 1 is not written by an earlier op",
        "ops[1].reads[1]: there is no storage 7, the graph has 2",
        "ops[1].reads[1]: names storage 0 twice",
        "ops[1].writes[1]: storage 0 is already written by op 0",
        "ops[1].time_ns: must not be negative",
        *("1", "0", "0", "0", "0"),
    ]


# Random steps of four layers, random orders of running ops again, and what is wrong with some.
WALKS = r"""
#include <cstdio>
#include <random>
#include "evaluate.h"
int main() {
  std::mt19937 random(18);
  const auto draw = [&random](int below) { return static_cast<int>(random() % below); };
  for (int round = 0; round < 300; ++round) {
    reprise::Graph graph("g", draw(50));
    const int count = 3 + draw(6);
    for (int s = 0; s < count; ++s) graph.AddStorage(draw(40));
    for (int o = 0; o < count; ++o) {
      reprise::Op op{.name = o % 2 ? "odd" : "", .writes = {o}, .time_ns = draw(9),
                     .workspace_bytes = draw(9), .backward = o >= count / 2, .once = draw(5) == 0};
      for (int s = 0; s < o; ++s) {
        if (draw(3) > 0) continue;
        op.reads.push_back(s);
        if (draw(6) == 0) op.mutates.push_back(s);
      }
      graph.AddOp(op);
    }
    if (draw(2)) graph.Require(draw(count));
    std::vector<int> ops;
    for (int o = 0; o < count; ++o) {
      ops.push_back(o);
      if (draw(4) == 0) ops.push_back(draw(o + 1));
    }
    std::vector<int> schedule = reprise::WithFrees(graph, ops);
    std::printf("%s\n", graph.ToJson().c_str());
    for (int o : ops) std::printf("%d ", o);
    std::printf("\n");
    for (int e : schedule) std::printf("%d ", e);
    std::printf("\n");
    if (draw(4) == 0) schedule.erase(schedule.begin() + draw(static_cast<int>(schedule.size())));
    if (draw(9) == 0) schedule.push_back(count);
    if (draw(9) == 0) schedule.push_back(-count - 1);
    for (int e : schedule) std::printf("%d ", e);
    const reprise::Evaluation found = reprise::Evaluate(graph, schedule);
    std::printf("\n%s\n%lld %d %lld", found.wrong.c_str(), static_cast<long long>(found.peak_bytes),
                found.peak_op, static_cast<long long>(found.time_ns));
    for (long long bytes : found.bytes_at) std::printf(" %lld", bytes);
    std::printf("\n");
  }
}
"""


def test_its_evaluator_says_what_the_definition_of_every_plan_says(
    build: Callable[..., Path],
) -> None:
    lines = run(build(WALKS, "evaluate.cc")).stdout.splitlines()

    wrong = 0
    for text, ops, completed, entries, why, figures in batched(lines, 6):
        graph = graph_of(json.loads(text))
        order, whole, schedule = (
            [int(word) for word in row.split()] for row in (ops, completed, entries)
        )
        assert with_frees(graph, order) == whole
        if not why:
            expected = evaluate(graph, schedule)
            assert [int(word) for word in figures.split()] == [
                *(expected.peak_bytes, expected.peak_op, expected.time_ns),
                *expected.bytes_at,
            ]
            continue
        wrong += 1
        with pytest.raises(RepriseError) as refusal:
            evaluate(graph, schedule)
        assert str(refusal.value) == why
    assert 30 < wrong < 270


def graph_of(message: dict[str, Any]) -> StepGraph:
    graph = StepGraph(message["name"], static_bytes=int(message["staticBytes"]))
    for storage in message["storages"]:
        graph.storage(int(storage["bytes"]))
    for op in message["ops"]:
        graph.op(
            *(op["name"], op["reads"], op["writes"]),
            mutates=op["mutates"],
            time_ns=int(op["timeNs"]),
            workspace_bytes=int(op["workspaceBytes"]),
            phase=op["phase"].removeprefix("PHASE_").lower(),
            kind=op["kind"].removeprefix("OP_KIND_").lower(),
        )
    graph.require(*message["required"])
    return graph


def batched(lines: list[str], size: int) -> Iterator[list[str]]:
    return (lines[i : i + size] for i in range(0, len(lines), size))


REMOTE = r"""
#include <cstdio>
#include "evaluate.h"
#include "remote.h"
int main(int, char** arguments) {
  reprise::Graph graph("remote", 1000);
  std::vector<int> h = {graph.AddStorage(4000, "x")};
  graph.AddOp({.name = "load", .writes = {h[0]}, .time_ns = 100, .once = true});
  for (int l = 0; l < 6; ++l) {
    h.push_back(graph.AddStorage(4000, "h"));
    graph.AddOp({.name = "layer", .reads = {h[l]}, .writes = {h[l + 1]}, .time_ns = 100});
  }
  int above = h[6];
  for (int l = 5; l >= 0; --l) {
    const int d = graph.AddStorage(l ? 4000 : 40, "d");
    std::vector<int> reads = {h[l], above};
    graph.AddOp({.name = "back", .reads = reads, .writes = {d}, .time_ns = 200, .backward = true});
    above = d;
  }
  graph.Require(above);
  reprise::Remote remote(arguments[1], arguments[2]);
  const reprise::Answer answer = remote.Ask(graph, arguments[3]);
  if (!answer.ok) {
    std::printf("%s\n%lld\n", answer.why.c_str(), static_cast<long long>(answer.smallest_bytes));
    return 1;
  }
  const reprise::Evaluation found = reprise::Evaluate(graph, answer.schedule);
  std::printf("%lld %lld %s\n", static_cast<long long>(answer.peak_bytes),
              static_cast<long long>(found.peak_bytes), found.wrong.c_str());
  const reprise::Curve curve = remote.Sweep(graph, 5);
  std::printf("%s\n", curve.why.c_str());
  for (const reprise::Point& point : curve.points) {
    std::printf("%lld %d %.6f\n", static_cast<long long>(point.budget_bytes), point.feasible,
                point.overhead);
  }
}
"""


@pytest.mark.long
def test_plans_and_curves_come_over_grpc(build: Callable[..., Path], beside: Any) -> None:
    program = build(REMOTE, "evaluate.cc", "remote.cc")
    address = beside.url.removeprefix("http://")

    planned = run(program, address, beside.token, "0.6x")
    refused = run(program, address, beside.token, "1KiB")
    unknown = run(program, address, "wrong", "0.6x")
    nobody = run(program, "127.0.0.1:1", "", "0.6x")

    predicted, walked = planned.stdout.splitlines()[0].split()
    assert predicted == walked
    whole, *points = planned.stdout.splitlines()[1:]
    assert whole == ""
    budgets = [int(point.split()[0]) for point in points]
    assert len(budgets) == 5
    assert budgets == sorted(budgets, reverse=True)
    assert points[0].split()[1:] == ["1", "0.000000"]
    why, smallest = refused.stdout.splitlines()
    assert why.startswith("Nothing fits in 1.0 KiB: op ")
    assert int(smallest) > 1024
    assert "token" in unknown.stdout
    assert nobody.stdout.startswith("no server answers: ")
