# SPDX-License-Identifier: Apache-2.0
"""clients/cpp, installed and built as a project would do it, against the real daemon."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprise.plan import evaluate, plan
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


PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(step LANGUAGES CXX)
find_package(Reprise 0.2 REQUIRED)
add_executable(step ${SOURCE})
target_link_libraries(step PRIVATE Reprise::client)
target_compile_options(step PRIVATE -Wall -Wextra -Werror -Wno-missing-field-initializers)
"""


@pytest.fixture
def example(root: Path) -> Path:
    """The example, as the build of the checkout makes it."""
    return root / "build/bin/client_example"


@pytest.fixture(scope="module")
def build(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Installs the client, and builds a source as a project of one's own does."""
    folder = tmp_path_factory.mktemp("cpp")
    prefix = folder / "installed"
    install = ["cmake", "--install", root / "build", "--component", "client", "--prefix", prefix]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    (folder / "CMakeLists.txt").write_text(PROJECT)

    def compiled(source: str) -> Path:
        made = folder / f"b{len(list(folder.glob('b*')))}"
        made.mkdir()
        (made / "step.cc").write_text(source)
        flags = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DSOURCE={made / 'step.cc'}"]
        for words in (["-S", folder, "-B", made, *flags], ["--build", made]):
            subprocess.run(["cmake", *words], check=True, stdout=subprocess.DEVNULL)
        return made / "step"

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
    example: Path,
    beside: Any,
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPRISE_RUN_ID", "01900000-0000-7000-8000-000000000018")

    kept, refused = run(example, "0.5x"), run(example, "1KiB")

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
    example: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(home))  # not that of a daemon of this user

    alone = run(example, "0.5x")

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
